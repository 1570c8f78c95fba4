/* weights.c - weights from files into the order in which the threads stream them.
 *
 * Each thread has one arena: its column blocks of every matrix, in the order of use.  So what it
 * reads in one step is one run of memory (huge pages, prefetch across matrices).
 * Adding a weight only decides where its pieces will lie.  weights_load then reads all pieces in the
 * order of the files, neighbours together, many reads at a time; the team packs one set of buffers while
 * the others are being read.
 *
 * A matrix with separate scales (see repack.h) cannot be packed piece by piece.  All of it is read
 * into a stage, and each share is packed from there; two stages alternate.
 */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu.h"
#include "repack.h"
#include "types.h"
#include "kernels/refuse.h"

#define BUFFER ((size_t)1 << 19)       /* bytes read at once, if a piece is not larger */
#define GAP    4096                    /* most bytes between pieces that are read together */
#define SET    12                      /* buffers in a set: one is packed while the others are read */
#define SETS   3

struct load_piece {                         /* a run of outputs of one part, or a vector */
	const struct sr_tensor *t;
	const struct weight *w;        /* whose part this is; NULL: a vector */
	float   *vec;                  /* a vector: where to */
	struct sr_extent at;           /* in the files; not those of a stage */
	int32_t  part, expert;
	int32_t  row, rows;            /* of the matrix; row is a multiple of KERN_COLS */
};

struct load_buffer { const struct load_piece *piece; size_t n; uint8_t *at, *data; }; /* a run of n pieces */

struct list { struct load_piece *piece; size_t n, cap; };

enum { DATA, SCALE, ZERO, INDEX, N_APART };   /* the arrays of a tensor with separate scales */
struct stage {
	const struct load_piece *piece;     /* the shares of one tensor, [n] */
	int n, open;                   /* open: reads under way */
	uint8_t *buffer[N_APART], *at[N_APART]; /* where to read to; where the first byte came to lie */
};

struct loader {
	struct list list, apart;
	size_t largest, largest_apart[N_APART], largest_rows;
	uint8_t *mem, *rows;           /* rows: [threads][largest_rows], 16 repacked rows */
	struct set {
		struct load_buffer buffer[SET];
		int n, open;           /* buffers in use; of those, reads under way */
	} set[SETS];
	struct stage stage[2];
	struct sr_backend *b;
	struct set *packing;           /* what the team packs now */
	struct stage *repacking;       /* or the stage */
};

static int add_piece(struct list *l, struct load_piece p)
{
	if (l->n == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 256;
		struct load_piece *more = realloc(l->piece, cap * sizeof(*more));

		if (!more)
			return -ENOMEM;
		l->piece = more;
		l->cap = cap;
	}
	l->piece[l->n++] = p;
	return 0;
}

static int add_read(struct loader *ld, struct load_piece p)
{
	if (p.at.bytes > ld->largest)
		ld->largest = (size_t)p.at.bytes;
	return add_piece(&ld->list, p);
}

static uint8_t *take(struct dev *d, size_t bytes)
{
	uint8_t *at = d->arena;

	d->arena += (bytes + 63) & ~(size_t)63;
	assert(d->arena <= d->arena_end);
	return at;
}

/* ---- vectors: in the arena of thread 0, as f32 ------------------------------------------- */

static int64_t check_vector(const struct kern *k, const struct sr_tensor *t, char *err, size_t errlen)
{
	if (k->form(t->type) < 0 || !types_bytes(t->type, t->k) || types_quantized(t->type))
		return refuse(-ENOTSUP, err, errlen, "tensor %s: vectors of its type are not supported",
			t->name);
	if (sr_stored_of(t, 0).data.bytes != types_bytes(t->type, t->outputs ? t->outputs : t->k) ||
	    (t->outputs && sr_output_of(t, t->k - 1) >= t->outputs))
		return refuse(-EINVAL, err, errlen, "tensor %s has %d elements, which is not %llu bytes of its type",
			t->name, t->k, (unsigned long long)t->data.bytes);
	return 0;
}

/* Each expert's vector to the place `apart` floats after the one before. */
static int64_t read_vectors(struct loader *ld, const struct sr_tensor *t, float *to, size_t apart, char *err,
                            size_t errlen)
{
	for (int32_t e = 0; e < t->count; e++, to += apart)
		if (add_read(ld, (struct load_piece){ .t = t, .vec = to, .at = sr_stored_of(t, e).data }))
			return refuse(-ENOMEM, err, errlen, "no memory for the list of weights");
	return 0;
}

static int64_t add_vector(struct dev *d, struct weight *w, const struct sr_tensor *t,
                          float **out, char *err, size_t errlen)
{
	struct sr_backend *b = d->b;
	size_t bytes = ((size_t)t->k * sizeof(float) + 63) & ~(size_t)63;
	int64_t e = check_vector(b->k, t, err, errlen);

	if (e)
		return e;
	if (t->count != 1)
		return refuse(-EINVAL, err, errlen, "tensor %s is %d vectors, not one", t->name, t->count);
	if (!w) {
		b->dev[0].arena_size += bytes;
		return (int64_t)bytes;
	}
	*out = (float *)take(&b->dev[0], bytes);
	e = read_vectors(b->loader, t, *out, 0, err, errlen);
	return e ? e : (int64_t)bytes;
}

/* ---- matrices ------------------------------------------------------------------------------- */

/* A part's outputs, in pieces that fit a buffer. */
static int add_blocks(struct loader *ld, const struct weight *w, int part, const struct sr_tensor *t)
{
	size_t row_bytes = types_bytes(t->type, t->k);
	int32_t step = (int32_t)(BUFFER / (row_bytes * KERN_COLS)) * KERN_COLS;

	if (step < KERN_COLS)
		step = KERN_COLS;
	for (int32_t e = 0; e < t->count; e++) {
		struct sr_extent all = sr_stored_of(t, e).data;

		for (int32_t row = 0; row < t->n; row += step) {
			int32_t rows = t->n - row < step ? t->n - row : step, rc;

			rc = add_read(ld, (struct load_piece){ .t = t, .w = w, .part = part, .expert = e, .row = row,
				.rows = rows, .at = { all.offset + (uint64_t)row * row_bytes,
				(uint64_t)rows * row_bytes, all.file } });
			if (rc)
				return rc;
		}
	}
	return 0;
}

static const struct sr_extent *extent(const struct sr_stored *s, int what)
{
	return what == DATA ? &s->data : what == SCALE ? &s->scale : what == ZERO ? &s->zero : &s->index;
}

/* A part that is packed out of a stage: a piece for each thread, of each expert. */
static int add_shares(struct loader *ld, const struct weight *w, int part, const struct sr_tensor *t, int threads)
{
	int32_t n_blocks = w->part[part].n_blocks;
	size_t rows = KERN_COLS * repack_row_bytes(t);

	if (rows > ld->largest_rows)
		ld->largest_rows = rows;
	for (int32_t e = 0; e < t->count; e++) {
		struct sr_stored all = sr_stored_of(t, e);

		for (int i = 0; i < N_APART; i++)
			if (extent(&all, i)->bytes > ld->largest_apart[i])
				ld->largest_apart[i] = extent(&all, i)->bytes;
		for (int i = 0; i < threads; i++) {
			int32_t row = block_from(n_blocks, i, threads) * KERN_COLS;
			int32_t end = block_from(n_blocks, i + 1, threads) * KERN_COLS, rc = 0;

			end = end < t->n ? end : t->n;
			if (row < end)
				rc = add_piece(&ld->apart, (struct load_piece){ .t = t, .w = w, .part = part,
					.expert = e, .row = row, .rows = end - row });
			if (rc)
				return rc;
		}
	}
	return 0;
}

static int64_t check_matrix(const struct kern *k, const struct sr_tensor *t, char *err, size_t errlen)
{
	bool apart = repack_needed(t);
	const char *why = apart ? repack_refuses(t) : NULL;

	if (!why && k->form(repack_type(t)) < 0)
		return refuse(-ENOTSUP, err, errlen, "tensor %s: matrices of its type are not supported on the "
			"CPU; F32, F16, BF16, FP8, int8, Q8_0, Q4_0 to Q5_1, Q2_K to Q6_K, IQ2, IQ3, IQ4, MXFP4, NVFP4, AWQ and GPTQ "
			"are", t->name);
	if (t->n < 1 || t->k < 1 || t->k % 32 || (!apart && !types_bytes(t->type, t->k)))
		return refuse(-ENOTSUP, err, errlen, "tensor %s is %d x %d: the inner size must be a multiple "
			"of 32 on the CPU, of 256 for K-quants, IQ2, IQ3 and IQ4_XS", t->name, t->n, t->k);
	if (!apart && sr_stored_of(t, 0).data.bytes != (uint64_t)t->n * types_bytes(t->type, t->k))
		return refuse(-EINVAL, err, errlen, "tensor %s is %d x %d, which is not %llu bytes of its type",
			t->name, t->n, t->k, (unsigned long long)t->data.bytes);
	if (why)
		return refuse(-ENOTSUP, err, errlen, "tensor %s is not supported on the CPU: %s", t->name, why);
	return 0;
}

/* The groups of inputs of a matrix with act-order, in the arena of thread 0. */
static int64_t add_index(struct sr_backend *b, const struct sr_tensor *t, uint16_t **out)
{
	size_t bytes = ((size_t)t->count * (size_t)t->k * sizeof(uint16_t) + 63) & ~(size_t)63;

	if (types_base(repack_type(t)) != HELD_U4_ORDER)
		return 0;
	if (out)
		*out = (uint16_t *)(void *)take(&b->dev[0], bytes);
	else
		b->dev[0].arena_size += bytes;
	return (int64_t)bytes;
}

static int64_t add_matrix(struct dev *d, struct weight *w, const struct sr_tensor *const *t, int n,
                          char *err, size_t errlen)
{
	struct sr_backend *b = d->b;
	int64_t total = 0;
	int32_t col = 0;

	for (int p = 0; p < n; p++) {
		int64_t e = check_matrix(b->k, t[p], err, errlen);

		if (e)
			return e;
		if (t[p]->k != t[0]->k || t[p]->count != t[0]->count)
			return refuse(-EINVAL, err, errlen, "tensor %s is %d matrices of %d inputs, but those before it "
				"are %d of %d", t[p]->name, t[p]->count, t[p]->k, t[0]->count, t[0]->k);
	}
	for (int p = 0; p < n; p++) {
		int32_t type = repack_type(t[p]);
		struct part q = { .type = type, .n = t[p]->n, .col = col,
			.n_blocks = (t[p]->n + KERN_COLS - 1) / KERN_COLS,
			.form = (enum kern_form)b->k->form(type),
			.block_bytes = b->k->block_bytes(type, t[p]->k) };
		int e = 0;

		col += t[p]->n;
		total += add_index(b, t[p], w ? &q.index : NULL);
		if (w)
			w->part[p] = q;
		for (int i = 0; i < b->n_threads; i++) {
			int32_t from = block_from(q.n_blocks, i, b->n_threads);
			int32_t to = block_from(q.n_blocks, i + 1, b->n_threads);
			size_t bytes = (size_t)t[p]->count * (size_t)(to - from) * q.block_bytes;

			total += (int64_t)bytes;
			if (w)
				w->share[i * PARTS + p] = take(&b->dev[i], bytes);
			else
				b->dev[i].arena_size += bytes;
		}
		b->made_forms |= 1u << q.form;
		if (!w)
			continue;
		w->forms |= 1u << q.form;
		e = repack_needed(t[p]) ? add_shares(b->loader, w, p, t[p], b->n_threads)
		                        : add_blocks(b->loader, w, p, t[p]);
		if (e)
			return refuse(-ENOMEM, err, errlen, "no memory for the list of weights");
	}
	if (w) {
		w->n = col;
		w->n_parts = n;
		w->count = t[0]->count;
	}
	return total;
}

/* A bias is one vector over all parts, for each expert, zero where a part has none. */
static int64_t add_bias(struct dev *d, struct weight *w, const struct sr_tensor *const *t,
                        const struct sr_tensor *const *bias, int n, char *err, size_t errlen)
{
	size_t all = 0, one = 0;
	int32_t col = 0;
	int64_t e = 0;
	bool any = false;

	for (int p = 0; p < n; p++) {
		any |= bias && bias[p];
		one += (size_t)t[p]->n;
	}
	if (!any)
		return 0;
	all = ((size_t)t[0]->count * one * sizeof(float) + 63) & ~(size_t)63;
	if (w)
		w->bias = (float *)take(&d->b->dev[0], all);
	else
		d->b->dev[0].arena_size += all;
	for (int p = 0; p < n && !e; col += t[p++]->n) {
		if (!bias[p])
			continue;
		e = check_vector(d->b->k, bias[p], err, errlen);
		if (!e && (bias[p]->k != t[p]->n || bias[p]->count != t[p]->count))
			e = refuse(-ENOTSUP, err, errlen, "tensor %s does not fit as a bias of %s", bias[p]->name,
				t[p]->name);
		if (!e && w)
			e = read_vectors(d->b->loader, bias[p], w->bias + col, one, err, errlen);
	}
	return e ? e : (int64_t)all;
}

int64_t weights_add(struct dev *d, struct weight **out, const struct sr_tensor *const *part,
                    const struct sr_tensor *const *bias, int n, char *err, size_t errlen)
{
	struct sr_backend *b = d->b;
	struct weight *w = NULL;
	int64_t bytes, more;

	assert(n >= 1 && n <= PARTS);
	if (out) {
		w = calloc(1, sizeof(*w));
		if (!w || !(w->share = calloc((size_t)b->n_threads * PARTS, sizeof(*w->share)))) {
			free(w);
			return refuse(-ENOMEM, err, errlen, "no memory for a weight");
		}
		w->next = b->weights;
		b->weights = w;
		w->k = part[0]->k;
	}
	if (part[0]->n == 1) {
		bytes = add_vector(d, w, part[0], w ? &w->vec : NULL, err, errlen);
		if (bytes >= 0 && bias && bias[0]) {
			more = add_vector(d, w, bias[0], w ? &w->bias : NULL, err, errlen);
			bytes = more < 0 ? more : bytes + more;
		}
	} else {
		bytes = add_matrix(d, w, part, n, err, errlen);
		if (bytes >= 0) {
			more = add_bias(d, w, part, bias, n, err, errlen);
			bytes = more < 0 ? more : bytes + more;
		}
	}
	if (bytes >= 0 && w)
		*out = w;
	return bytes;
}

/* ---- reading and packing ----------------------------------------------------------------------- */

/* Where a row's block lies, once packed. */
static uint8_t *block_of(const struct sr_backend *b, const struct load_piece *p, int32_t row)
{
	int32_t block = row / KERN_COLS, owner = block_owner(p->w->part[p->part].n_blocks, block, b->n_threads);

	return weight_block(p->w, p->part, p->expert, block, owner, b->n_threads);
}

static void pack_blocks(const struct sr_backend *b, const struct load_piece *p, const uint8_t *data)
{
	size_t row_bytes = (size_t)p->at.bytes / (size_t)p->rows;

	for (int32_t r = 0; r < p->rows; r += KERN_COLS) {
		const uint8_t *src[KERN_COLS];

		for (int c = 0; c < KERN_COLS; c++)
			src[c] = r + c < p->rows ? data + (size_t)(r + c) * row_bytes : NULL;
		b->k->pack(p->t->type, p->t->k, src, block_of(b, p, p->row + r));
	}
}

static void pack_vector(const struct kern *k, const struct load_piece *p, const uint8_t *data)
{
	const struct sr_tensor *t = p->t;
	size_t size = types_bytes(t->type, 1);
	float *v = p->vec;

	for (int32_t i = 0; i < t->k; i++) {
		k->dequant(t->type, 1, data + (size_t)sr_output_of(t, i) * size, &v[i]);
		v[i] = (v[i] + t->add) * (t->mul != 0 ? t->mul : 1);
		if (t->neg_exp)
			v[i] = (float)-exp((double)v[i]);
	}
}

static void pack_set(void *ctx, int thread)
{
	struct loader *ld = ctx;

	(void)thread;
	struct set *s = ld->packing;

	for (int32_t i = team_take(ld->b->team); i < s->n; i = team_take(ld->b->team)) {
		const struct load_buffer *f = &s->buffer[i];

		for (size_t j = 0; j < f->n; j++) {
			const struct load_piece *p = &f->piece[j];
			const uint8_t *data = f->data + (p->at.offset - f->piece->at.offset);

			if (p->w)
				pack_blocks(ld->b, p, data);
			else
				pack_vector(ld->b->k, p, data);
		}
	}
}

/* Wait for one read of any set; its tag is the number of its buffer. */
static int wait_one(struct loader *ld, const struct sr_source *src)
{
	uint64_t tag;
	void *at;
	int e = src->wait(src->ctx, &tag, &at);

	if (e)
		return e;
	ld->set[tag / SET].buffer[tag % SET].data = at;
	ld->set[tag / SET].open--;
	return 0;
}

static bool any_open(const struct loader *ld)
{
	for (int i = 0; i < SETS; i++)
		if (ld->set[i].open)
			return true;
	return false;
}

static int by_place(const void *a, const void *b)
{
	const struct sr_extent *x = &((const struct load_piece *)a)->at, *y = &((const struct load_piece *)b)->at;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return (x->offset > y->offset) - (x->offset < y->offset);
}

/* The pieces from `from` on that are read at once, and where they lie together. */
static struct sr_extent run_of(const struct loader *ld, size_t from, size_t *n)
{
	const struct load_piece *p = ld->list.piece + from;
	struct sr_extent all = p->at;

	for (*n = 1; from + *n < ld->list.n; ++*n) {
		const struct sr_extent *next = &p[*n].at;
		uint64_t end = all.offset + all.bytes;

		if (next->file != all.file || next->offset < end || next->offset - end > GAP ||
		    next->offset + next->bytes - all.offset > ld->largest)
			break;
		all.bytes = next->offset + next->bytes - all.offset;
	}
	return all;
}

/* Start reading pieces from *from on, as many as there are buffers. */
static int start_set(struct loader *ld, const struct sr_source *src, struct set *s, size_t *from)
{
	s->n = s->open = 0;
	while (s->n < SET && *from < ld->list.n) {
		struct load_buffer *f = &s->buffer[s->n];
		uint64_t tag = (uint64_t)(s - ld->set) * SET + (uint64_t)s->n;
		struct sr_extent all = run_of(ld, *from, &f->n);
		int e;

		f->piece = ld->list.piece + *from;
		e = src->read(src->ctx, &all, 0, (size_t)all.bytes, f->at, tag);
		if (e == -EAGAIN && any_open(ld))
			e = wait_one(ld, src);
		else if (!e)
			s->open++, s->n++, *from += f->n;
		if (e)
			return e;
	}
	return 0;
}

static int load_all(struct loader *ld, const struct sr_source *src)
{
	size_t next = 0;
	int e = 0;

	for (int i = 0; i < SETS && !e; i++)
		e = start_set(ld, src, &ld->set[i], &next);
	for (struct set *s = ld->set; !e && s->n; s = s == ld->set + SETS - 1 ? ld->set : s + 1) {
		while (s->open && !e)
			e = wait_one(ld, src);
		ld->packing = s;
		if (!e) {
			team_run(ld->b->team, pack_set, ld);
			e = start_set(ld, src, s, &next);
		}
	}
	return e;
}

/* Start reading the tensor whose shares begin at piece `from`. */
static int start_stage(struct loader *ld, const struct sr_source *src, struct stage *s, size_t from)
{
	const struct load_piece *p = ld->apart.piece + from;
	struct sr_stored all;

	s->piece = p;
	s->n = s->open = 0;
	while (from + (size_t)s->n < ld->apart.n && p[s->n].t == p->t && p[s->n].expert == p->expert)
		s->n++;
	if (s->n)
		all = sr_stored_of(p->t, p->expert);
	for (int i = 0; s->n && i < N_APART; i++) {
		const struct sr_extent *e = extent(&all, i);
		int rc = 0;

		s->at[i] = NULL;
		if (e->bytes)
			rc = src->read(src->ctx, e, 0, e->bytes, s->buffer[i], (uint64_t)i);
		if (rc)                /* four reads can always be under way */
			return rc;
		s->open += e->bytes > 0;
	}
	return 0;
}

static int wait_stage(const struct sr_source *src, struct stage *s)
{
	for (; s->open; s->open--) {
		uint64_t tag;
		void *at;
		int e = src->wait(src->ctx, &tag, &at);

		if (e)
			return e;
		s->at[tag] = at;
	}
	return 0;
}

static void repack_stage(void *ctx, int thread)
{
	struct loader *ld = ctx;
	const struct stage *s = ld->repacking;
	const struct kern *k = ld->b->k;
	const struct apart a = { s->at[DATA], s->at[SCALE], s->at[ZERO], s->at[INDEX] };
	uint8_t *rows = ld->rows + (size_t)thread * ld->largest_rows;

	for (int32_t i = team_take(ld->b->team); i < s->n; i = team_take(ld->b->team)) {
		const struct load_piece *p = &s->piece[i];
		uint16_t *index = p->w->part[p->part].index;

		if (index && p->row == 0)
			repack_index(p->t, &a, index + (size_t)p->expert * (size_t)p->t->k);
		for (int32_t r = 0; r < p->rows; r += KERN_COLS) {
			int32_t n = p->rows - r < KERN_COLS ? p->rows - r : KERN_COLS;
			const uint8_t *src[KERN_COLS] = { NULL };

			for (int c = 0; c < n; c++)
				src[c] = rows + (size_t)c * repack_row_bytes(p->t);
			repack_rows(p->t, &a, p->row + r, n, rows);
			k->pack(p->w->part[p->part].type, p->t->k, src, block_of(ld->b, p, p->row + r));
		}
	}
}

static int load_apart(struct loader *ld, const struct sr_source *src)
{
	size_t done = 0;
	int turn = 0, e = start_stage(ld, src, &ld->stage[0], 0);

	while (!e && ld->stage[turn].n) {
		struct stage *s = &ld->stage[turn];

		e = wait_stage(src, s);
		if (e)
			break;
		done += (size_t)s->n;
		ld->repacking = s;
		turn = !turn;
		e = start_stage(ld, src, &ld->stage[turn], done);
		if (!e)
			team_run(ld->b->team, repack_stage, ld);
	}
	return e;
}

struct loader *weights_loader_create(void)
{
	return calloc(1, sizeof(struct loader));
}

void weights_loader_destroy(struct loader *ld)
{
	free(ld->list.piece);
	free(ld->apart.piece);
	free(ld->rows);
	free(ld);
}

/* Memory for reads: the sets of buffers, then the two stages. */
static int take_buffers(struct loader *ld, const struct sr_source *src, size_t *all)
{
	size_t each, apart[N_APART];
	uint8_t *at;

	if (ld->list.n > 1) { /* so that there can be neighbours */
		qsort(ld->list.piece, ld->list.n, sizeof(*ld->list.piece), by_place);
		ld->largest = ld->largest > BUFFER ? ld->largest : BUFFER;
	}
	each = (ld->largest + src->slack + 4095) & ~(size_t)4095;
	*all = SETS * SET * each;
	for (int i = 0; i < N_APART; i++) {
		apart[i] = ld->apart.n ? (ld->largest_apart[i] + src->slack + 4095) & ~(size_t)4095 : 0;
		*all += 2 * apart[i];
	}
	ld->mem = at = mmap(NULL, *all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ld->rows = calloc((size_t)ld->b->n_threads, ld->largest_rows + 1);
	if (ld->mem == MAP_FAILED || !ld->rows)
		return -ENOMEM;
	(void)madvise(ld->mem, *all, MADV_HUGEPAGE);
	for (int i = 0; i < SETS * SET; i++, at += each)
		ld->set[i / SET].buffer[i % SET].at = at;
	for (int i = 0; i < 2 * N_APART; i++) {
		ld->stage[i / N_APART].buffer[i % N_APART] = at;
		at += apart[i % N_APART];
	}
	return src->arena ? src->arena(src->ctx, ld->mem, *all) : 0;
}

int weights_load(struct sr_backend *b, const struct sr_source *src, char *err, size_t errlen)
{
	struct loader *ld = b->loader;
	size_t all;
	int e;

	ld->b = b;
	e = take_buffers(ld, src, &all);
	if (e == -ENOMEM)
		return refuse(e, err, errlen, "no memory for read buffers, %zu bytes", all);
	if (!e)
		e = load_all(ld, src);
	if (!e)
		e = load_apart(ld, src);
	if (e) /* the start has failed; ld->mem stays mapped, since reads into it may be under way */
		return refuse(e, err, errlen, "the weights cannot be read: %s", strerror(-e));
	munmap(ld->mem, all);
	return 0;
}

void weights_free(struct sr_backend *b)
{
	while (b->weights) {
		struct weight *w = b->weights;

		b->weights = w->next;
		free(w->share);
		free(w);
	}
}

void weights_lookup(const struct sr_backend *b, const struct weight *w, int32_t row, float *dst)
{
	const struct part *p = &w->part[0];
	int32_t block = row / KERN_COLS;

	b->k->unpack(p->type, w->k, weight_block(w, 0, 0, block, block_owner(p->n_blocks, block, b->n_threads),
		b->n_threads), row % KERN_COLS, dst);
}
