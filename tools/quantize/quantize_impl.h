/* quantize_impl.h - a model while it is being quantized, only for tools/quantize/quantize*.c:
 *
 *	quantize.c         the command: models, texts and directories
 *	quantize_layer.c   the plan, and one layer: read it, search its scales, round, write
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
#include "tensors_out.h"

enum { V_NORM1, V_NORM2, V_Q_BIAS, V_K_BIAS, V_V_BIAS, V_O_BIAS, V_Q_NORM, V_K_NORM, N_VECTORS };

/* Numbers in the output file of the parts of a layer. */
struct planned { int vector[N_VECTORS], qweight[N_MATRICES], qzeros[N_MATRICES], scales[N_MATRICES]; };

struct quantize {
	const char *model, *dir, *text;    /* text NULL: no search, and the loss is unknown */
	bool    search;                    /* false: the text only measures the loss */
	bool    paired;                    /* rows of q and k are in the order that unpair() describes */
	int32_t group;
	bool    all;                       /* --tensors: print the error of each */
	struct located where;
	struct model *md;
	const struct sr_model *m;
	int    *file;                      /* [md->n_files] */
	struct tensors_out *out;
	int     embed, norm, head;
	struct planned *layer;             /* [L] */

	struct layer now;                  /* the current layer, as floats */
	struct moments in[N_INPUTS];
	struct calibrate *c;
	int32_t *id, n_tokens;
	float  *x, *y;                     /* [n_tokens][d_model] of the original; of the written model */

	double  error[N_MATRICES], worst[N_MATRICES];
	int32_t worst_at[N_MATRICES];
	double  loss, loss_after;          /* mean negative log likelihood */
	char    err[5000];
};

#define quantize_fail(z, rc, ...) refuse(rc, (z)->err, sizeof((z)->err), __VA_ARGS__)
int  quantize_no_memory(struct quantize *z);

/* These return 0, or -errno and a sentence in z->err. */
int  quantize_rows(struct quantize *z, const struct sr_tensor *t, int32_t row, int32_t n, float *to);
int  quantize_copy(struct quantize *z, const struct sr_tensor *t, int to);
int  quantize_check(struct quantize *z);      /* can all tensors be read, and such a model be written? */
int  quantize_plan(struct quantize *z);       /* add names and shapes to z->out */
int  quantize_room(struct quantize *z);       /* allocate memory for one layer */
void quantize_room_free(struct quantize *z);  /* free it */
int  quantize_layer(struct quantize *z, int32_t l);
const char *quantize_matrix(int i);           /* its name */

#endif
