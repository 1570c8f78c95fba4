/* LINK: @cuda kernels/cpu/[!b]*.c kernels/cpu/isa/[a-z]*.c tests/rig/drive.c tests/rig/tiny.c tests/cuda/truth.c kernels/cuda/[!b]*.cu */
/* test_cuda_pool.cc - pooled rows on the CUDA back end: vectors of each kind beside those of plain C, whole and in
 * chunks, beside a sequence that decodes. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include <algorithm>
#include <vector>

#include "tests/cuda/pair.h"

#define PROMPT 45

static std::vector<float> vector_of(struct drive *d, const struct sr_pooling &how, int chunk, int len)
{
	static const uint32_t listed[] = { 7, 130, 11 };
	int32_t text[PROMPT], other[] = { 5, 9, 2 };

	for (int i = 0; i < PROMPT; i++)
		text[i] = (i * i * 7 + 3) % 200;
	std::fill_n(d->batch->vector + 2 * 64, len, NAN);    /* not the vector of the run before */
	drive_begin(d, 0, NULL);
	drive_pool(d, 0, &how);
	if (how.kind == SR_POOL_LOGITS)
		drive_list(d, 0, SR_LIST_ALLOW, listed, 3);
	drive_range(d, 0, 3, 4);
	drive_begin(d, 1, NULL);
	drive_range(d, 1, 10, 3);
	drive_row(d, 1, 0, other, 3, 3 - 1, 1);
	for (int at = 0; at < PROMPT; at += chunk) {
		int n = PROMPT - at < chunk ? PROMPT - at : chunk;

		if (at)                        /* an answer goes on beside it */
			drive_row(d, 1, 3 + at / chunk - 1, NULL, 1, 0, 1);
		drive_pool_row(d, 0, (enum sr_pool)how.kind, at, text + at, n, at + n == PROMPT ? 2 : -1);
		drive_step(d);
	}
	return std::vector<float>(d->batch->vector + 2 * 64, d->batch->vector + 2 * 64 + len);
}

static void test_vectors(void **)
{
	static const struct { struct sr_pooling how; int len; } cases[] = {
		{ { SR_POOL_LAST, 0, 0 }, 64 }, { { SR_POOL_LAST, 0, 1 }, 64 }, { { SR_POOL_MEAN, 0, 0 }, 64 },
		{ { SR_POOL_MEAN, 24, 1 }, 24 }, { { SR_POOL_FIRST, 0, 0 }, 64 }, { { SR_POOL_LOGITS, 0, 0 }, 3 },
	};
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = limits();
	struct pair p;

	lim.vectors = lim.rows = 4;
	lim.width = 64;
	lim.logit_rows = 40;
	p.model = tiny_create(&shape, SR_BF16, TINY_UNTIED, 5);
	truth_open(&p.cpu, p.model, &lim);
	lim.worked = 0;
	lim.deterministic = 1;
	lim.eager = 0;                         /* a row that is pooled is no step of a graph */
	p.model->n_done = 0;
	if (drive_open(&p.gpu, sr_backend_get(SR_BACKEND_VERSION), &p.model->m, &p.model->src, &lim))
		fail_msg("%s", p.gpu.err);
	for (const auto &c : cases) {
		std::vector<float> want = vector_of(&p.cpu, c.how, PROMPT, c.len), whole;

		for (int chunk : { PROMPT, 16, 1 }) {
			std::vector<float> got = vector_of(&p.gpu, c.how, chunk, c.len);
			double off = 0, size = 0;

			for (int i = 0; i < c.len; i++) {
				off += ((double)got[(size_t)i] - want[(size_t)i]) * ((double)got[(size_t)i] - want[(size_t)i]);
				size += (double)want[(size_t)i] * want[(size_t)i];
			}
			within("a vector", sqrt(off / size), 0.05, "kind %d, chunks of %d", (int)c.how.kind, chunk);
			if (chunk == PROMPT)
				whole = got;
			assert_memory_equal(whole.data(), got.data(), sizeof(float) * (size_t)c.len);
		}
		emu_reversed = !emu_reversed;
	}
	emu_reversed = false;
	close_pair(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_vectors) };

	return cmocka_run_group_tests_name("cuda_pool", tests, NULL, NULL);
}
