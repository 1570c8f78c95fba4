/* attend_spans.h - walks the spans of a tile and joins them, in one order for every instruction set.
 *
 * Included once by each avx*_attend.c, after its struct attend_tile and what works on it in its own vectors:
 * begin_row(), begin_span(), scores(), weigh(), values(), end_span(), total_of().  Any thread, no state.
 */
#ifndef KERNELS_CPU_ATTEND_SPANS_H
#define KERNELS_CPU_ATTEND_SPANS_H

/* Latent: the unit's values out of its keys. */
static __attribute__((noinline)) void turn(struct attend_tile *t)
{
	size_t bytes = kvblock_turned(t->width) / UNIT_BLOCKS;

	for (int32_t b = 0; b < t->blocks; b++) {
		kvblock_turn(t->width, t->block[b] + t->a->k_off, t->a->turned + (size_t)b * bytes);
		t->value[b] = t->a->turned + (size_t)b * bytes;
	}
}

/* Positions from .. to, all of one span. */
INLINE void walk(const int rows, const int kv, struct attend_tile *t, int32_t from, int32_t to)
{
	for (t->base = from / UNIT * UNIT; t->base <= to; t->base += UNIT) {
		int32_t last = to - t->base < UNIT ? to - t->base : UNIT - 1;

		t->blocks = last / KERN_BLOCK + 1;
		for (int32_t b = 0; b < t->blocks; b++) {
			t->block[b] = t->a->kv +
				(size_t)t->a->table[t->base / KERN_BLOCK + b] * t->a->block_stride;
			t->value[b] = t->block[b] + t->a->v_off;
		}
		if (t->a->latent)
			turn(t);
		scores(rows, kv, t);
		for (int r = 0; r < rows; r++)
			weigh(kv, t, r);
		values(rows, kv, t);
	}
}

static __attribute__((noinline)) void walk_bf16(int32_t rows, struct attend_tile *t, int32_t from, int32_t to)
{
	FOR_ROWS(rows, walk, SR_KV_BF16, t, from, to)
}

static __attribute__((noinline)) void walk_i8(int32_t rows, struct attend_tile *t, int32_t from, int32_t to)
{
	FOR_ROWS(rows, walk, SR_KV_I8, t, from, to)
}

/* Row r's result, of all spans.  joined: they were joined in t->older. */
static void end_row(const struct attend_tile *t, int r, bool joined)
{
	const size_t E = (size_t)t->width, part = kern_part(t->width);
	const float *sum = joined ? t->older + (size_t)r * part + 16 : t->sum + (size_t)r * E;
	const float max = joined ? t->older[(size_t)r * part] : t->max[r];
	const float total = joined ? t->older[(size_t)r * part + 1] : total_of(t, r);
	const float by = kern_share(max, total, t->sink[r]);
	float *restrict out = t->out[r];

	for (size_t e = 0; e < E; e++)
		out[e] = by * sum[e];
}

/* All spans of a tile's rows, one after the other. */
static void all_spans(int32_t kv_type, int32_t rows, struct attend_tile *t)
{
	const size_t part = kern_part(t->width);
	const int32_t first = t->from[0] / KERN_SPAN, last = t->to[rows - 1] / KERN_SPAN;

	for (int32_t span = first; span <= last; span++) {
		int32_t begin = span * KERN_SPAN, end = begin + KERN_SPAN - 1;

		for (int32_t r = 0; r < rows; r++)
			begin_span(t, r);
		(kv_type == SR_KV_I8 ? walk_i8 : walk_bf16)(rows, t, span > first ? begin : t->from[0],
			span < last ? end : t->to[rows - 1]);
		for (int32_t r = 0; r < rows && first < last; r++) {
			float *older = t->older + (size_t)r * part;

			end_span(t, r, span > first ? t->part : older);
			if (span > first)
				kern_join(older, t->part, t->width);
		}
	}
	for (int32_t r = 0; r < rows; r++)
		end_row(t, r, first < last);
}

/* Only the span that the call names. */
static void one_span(int32_t kv_type, int32_t rows, struct attend_tile *t, float *part)
{
	const int32_t begin = t->a->span * KERN_SPAN, end = begin + KERN_SPAN - 1;
	int32_t from = t->from[0] > begin ? t->from[0] : begin, to = t->to[rows - 1] < end ? t->to[rows - 1] : end;

	for (int32_t r = 0; r < rows; r++)
		begin_span(t, r);
	(kv_type == SR_KV_I8 ? walk_i8 : walk_bf16)(rows, t, from, to);
	for (int32_t r = 0; r < rows; r++)
		end_span(t, r, part + (size_t)r * t->a->ld_part);
}

/* All rows of a call, a tile of ROWS at a time. */
static void all_tiles(int32_t kv_type, const struct kern_attend *a, struct attend_tile *t)
{
	int32_t n = a->n * a->heads;

	assert(kvblock_bytes(kv_type, a->head_dim));
	for (int32_t i = 0; i < n; i += ROWS) {
		int32_t rows = n - i < ROWS ? n - i : ROWS;

		for (int32_t r = 0; r < rows; r++)
			begin_row(kv_type, t, r, (i + r) / a->heads, (i + r) % a->heads);
		if (a->part)
			one_span(kv_type, rows, t, a->part + (size_t)i * a->ld_part);
		else
			all_spans(kv_type, rows, t);
	}
}

#endif
