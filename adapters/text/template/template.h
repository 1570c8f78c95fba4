/* template.h - chat templates: our subset of Jinja2 (as transformers and vLLM use it), with budgets
 * of steps, depth and output.  Also the core of sr_text_chat, for callers that hold JSON.
 */
#ifndef TEMPLATE_H
#define TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct template;   /* compiled; read-only, any thread */

struct template_budget { uint64_t steps; uint32_t depth; size_t output; }; /* 0 = default */

int  template_compile(struct template **out, const char *source, size_t n, char *err, size_t errlen);
void template_free(struct template *t);

/* May the template read the caller's "tools" or "documents"?  False: no branch or macro of it does, so the
 * model would not see them.  For any other name: true. */
bool template_reads(const struct template *t, const char *input);
extern const char *const template_inputs[];   /* the names it checks; ends with NULL */

/* vars: an object, which must contain bos_token and eos_token. */
int64_t template_render(const struct template *t, json_t *vars, const struct template_budget *b,
                        char **out, char *err, size_t errlen);

/* Render a chat with the model's template, or with `own`, as sr_text_chat does.  vars: "messages" and what
 * else the caller gives.  It adds what every template may expect: bos_token, eos_token, and null for tools
 * and documents.
 *
 * -EINVAL with *unread set: the caller gives *unread, but the template does not read it.  tools_optional:
 * tools that it does not read are omitted (the client does not want a call). */
struct sr_text;
struct text_chat { const struct template *own; bool tools_optional; };
int64_t text_chat(const struct sr_text *t, const struct text_chat *how, json_t *vars, const char **unread,
                  char **out, char *err, size_t errlen);

#endif
