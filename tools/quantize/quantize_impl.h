/* quantize_impl.h - a model while it is being quantized, only for tools/quantize/quantize*.c:
 *
 *	quantize.c         the command: models, texts and directories
 *	quantize_plan.c    which tensors are written in 4 bits, which as they are, and under which names
 *	quantize_layer.c   one layer: read it, search its scales, round, write
 *	quantize_dir.c     the files beside the weights
 */
#ifndef QUANTIZE_IMPL_H
#define QUANTIZE_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "awq.h"
#include "calibrate.h"
#include "core/instance/refuse.h"
#include "core/models/locate.h"
#include "core/models/model.h"
#include "core/models/safetensors.h"
#include "tensors_out.h"

/* A matrix that is written in 4 bits, as it is stored: it may hold several of the model's (qkv_proj). */
struct unit {
	char   *name;                      /* in the output, without ".weight" */
	struct sr_tensor from;             /* all of its rows */
	int     in;                        /* IN_MIXER .. */
	int32_t expert;                    /* -1: of no expert */
	int     kind;                      /* of struct kind */
	int     qweight, qzeros, scales;   /* numbers in the output file */
	struct matrix m;                   /* as floats while its layer is under way */
};

/* Rows of a unit that are one of the model's matrices. */
struct rows { int unit; int32_t first; const struct sr_tensor *t; };   /* unit -1: there is none */

/* A tensor that is written as it is, or with few changes. */
struct plain {
	char   *name;                      /* in the output */
	struct sr_tensor from;             /* of a GGUF; else .. */
	const struct safetensor *st;
	int32_t file;
	int     out;                       /* number in the output file */
	bool    changes;                   /* written by its layer, in f16 */
};

/* What a search, or the order of rows in a GGUF, changes besides the matrices. */
enum { C_NORM1, C_NORM1_BIAS, C_NORM2, C_NORM2_BIAS, C_V_BIAS, C_UP_BIAS, C_ROUTER, C_MIX, C_Q_BIAS, C_K_BIAS,
       N_CHANGES };

struct planned {
	int first, n_dense, n;             /* units: first those of no expert; then gate, up, down of each */
	struct rows q, k, v, o, up, down;  /* up and down: of the feed-forward part, or of a shared expert */
	int change[N_CHANGES];             /* of z->plain; -1: it stays */
};

/* Errors of the matrices of one name. */
struct kind { char name[32]; int n; double error, worst; int32_t worst_at; };
#define KINDS_MAX 32

struct quantize {
	const char *model, *dir, *text;    /* text NULL: no search, and the loss is unknown */
	bool    search;                    /* false: the text only measures the loss */
	bool    paired;                    /* rows of q and k are in the order that unpair() describes */
	int32_t group;
	bool    all;                       /* --tensors: print the error of each */
	struct located where;
	struct model *md;
	const struct sr_model *m;
	struct safetensors_set *st;        /* NULL: a GGUF */
	int    *file;                      /* [md->n_files] */
	struct tensors_out *out;

	struct unit *unit;
	struct plain *plain;
	int     n_units, n_plain;
	struct planned *layer;             /* [L] */
	struct kind kind[KINDS_MAX];
	int     n_kinds;

	float  *change[N_CHANGES];         /* the current layer's */
	struct inputs in;                  /* what its matrices read */
	struct calibrate c;
	int32_t *id, n_tokens;
	float  *x, *y;                     /* [n_tokens][d_model] of the original; of the written model */

	int32_t experts, seldom;           /* over all layers; those that fewer than EXPERT_ROWS tokens chose */
	double  loss, loss_after;          /* mean negative log likelihood */
	char    err[5000];
};

#define EXPERT_ROWS 32                     /* tokens that a search of an expert's scales needs */

#define quantize_fail(z, rc, ...) refuse(rc, (z)->err, sizeof((z)->err), __VA_ARGS__)
int  quantize_no_memory(struct quantize *z);

/* These return 0, or -errno and a sentence in z->err. */
int  quantize_rows(struct quantize *z, const struct sr_tensor *t, int32_t row, int32_t n, float *to);
int  quantize_check(struct quantize *z);      /* can such a model be written? */
int  quantize_plan(struct quantize *z);       /* add names and shapes to z->out */
void quantize_plan_free(struct quantize *z);
int  quantize_layer(struct quantize *z, int32_t l);
int  quantize_plain(struct quantize *z, const struct plain *p);   /* write it */

/* What quantization_config.modules_to_not_convert lists: an array (json_t *) of the names of matrices
 * that are not of 4 bits, and of towers. NULL: no memory. */
struct json_t *quantize_left(const struct quantize *z);

/* Is there a search for the scales of what norm1, v, up and norm2 make? */
bool quantize_scales_mixer(const struct quantize *z, int32_t l);
bool quantize_scales_o(const struct quantize *z, int32_t l);
bool quantize_scales_ffn(const struct quantize *z, int32_t l);
bool quantize_scales_down(const struct quantize *z);

#endif
