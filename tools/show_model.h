/* show_model.h - what was understood of a model, for slipring show: kinds of attention, experts, states, the
 * bytes that a token reads, and what its weights would take in other types.  Nothing here reads weights. */
#ifndef SHOW_MODEL_H
#define SHOW_MODEL_H

#include <jansson.h>

#include "core/models/model.h"

/* Calls fn for each tensor that the model has, in the order of computation. */
void show_each_tensor(const struct sr_model *m, void (*fn)(const struct sr_tensor *t, void *ctx), void *ctx);

void    show_kinds(const struct sr_model *m);           /* lines of text */
json_t *show_kinds_json(const struct sr_model *m);
void    show_experts(const struct sr_model *m);
json_t *show_experts_json(const struct sr_model *m);    /* null: it has none */
void    show_state(const struct sr_model *m);
void    show_shared(const struct sr_model *m);          /* keys and values of other layers; inputs of each */
json_t *show_state_json(const struct sr_model *m);      /* null: no layer has a state */

/* Bytes of weights, as stored, that a batch of one token reads: of the embedding a row, of experts those that
 * compute the token. */
uint64_t show_token_bytes(const struct sr_model *m);

/* Bytes of all weights with each matrix in one type, for a few types; and those that a token reads. */
#define SHOW_TYPES 5
struct show_size { const char *type; double bytes, token; };
void show_sizes(const struct sr_model *m, struct show_size out[SHOW_TYPES]);

/* What a sequence of so many tokens keeps in bfloat16: keys, values, states. */
double show_sequence_bytes(const struct sr_model *m, int32_t tokens);

const char *show_bytes(double bytes, char out[32]);    /* "5.7 GiB" */

#endif
