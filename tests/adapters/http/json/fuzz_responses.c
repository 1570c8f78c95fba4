/* LINK: @ask adapters/http/json/number.c -ljansson */
/* fuzz_responses.c - any bytes as the body of /v1/responses: a chat that renders, or a whole error. */
#include "tests/rig/agent_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) { return agent_fuzz(ask_responses_api, data, n); }
