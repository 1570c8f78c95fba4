/* template.h - chat templates: our subset of Jinja2 (the one transformers and vLLM use), with
 * budgets of steps, depth and output; and the inside of sr_text_chat, for callers that hold JSON.
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

/* May the template look at what the caller gives as "tools" or "documents"?  False: no branch or macro of
 * it does, so what is given would vanish.  Of any other name: true. */
bool template_reads(const struct template *t, const char *input);
extern const char *const template_inputs[];   /* the names it knows, up to NULL */

/* vars: an object; bos_token and eos_token belong into it. */
int64_t template_render(const struct template *t, json_t *vars, const struct template_budget *b,
                        char **out, char *err, size_t errlen);

/* A chat by the model's template, or by own: what sr_text_chat does.  vars: "messages" and what else is
 * given.  What every template may expect is put beside them: bos_token, eos_token, and null for tools and
 * documents.
 *
 * -EINVAL with *unread set: these are given, and the template does not read them.  tools_optional: tools
 * that it does not read are left out (the client does not want a call). */
struct sr_text;
struct text_chat { const struct template *own; bool tools_optional; };
int64_t text_chat(const struct sr_text *t, const struct text_chat *how, json_t *vars, const char **unread,
                  char **out, char *err, size_t errlen);

#endif
