/* template.h - chat templates: our subset of Jinja2 (as transformers and vLLM use it), with budgets
 * of steps, depth and output.
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

#endif
