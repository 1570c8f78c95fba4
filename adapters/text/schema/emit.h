/* emit.h - what emit.c and members.c share. */
#ifndef SCHEMA_EMIT_H
#define SCHEMA_EMIT_H

#include "impl.h"

uint32_t emit_join(struct schema *s, uint32_t a, uint32_t b);
int32_t emit_check(struct schema *s, int32_t symbol);                  /* symbol, or fails if it is -1 */
int32_t emit_lexeme(struct schema *s, uint32_t expr);
void emit_rule(struct schema *s, int32_t rule, uint32_t n, const int32_t *symbol);
#define EMIT(s, rule, ...) \
	emit_rule((s), (rule), sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t), \
	          (const int32_t[]){ __VA_ARGS__ })
uint32_t emit_key(struct schema *s, uint32_t body); /* `"body":` with whitespace behind each */
uint32_t emit_scalars(struct schema *s, const struct form *f);         /* numbers, null, true, false */

#endif
