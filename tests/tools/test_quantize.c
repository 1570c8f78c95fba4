/* LINK: @text @cpu @models tools/quantize/quantize.c tools/visible.c tools/quantize/quantize_plan.c tools/quantize/quantize_layer.c tools/quantize/quantize_dir.c tools/quantize/quantize_pieces.c tools/quantize/awq.c tools/quantize/calibrate.c tools/quantize/tensors_out.c tests/rig/drive.c tests/rig/tiny.c -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* test_quantize.c - slipring quantize: the back end reads what rounding gives, scales from a text help,
 * calibration runs the model's own layers, and the whole command. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/text/slipring-text.h"
#include "core/models/model.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/repack.h"
#include "kernels/cpu/types.h"
#include "tests/rig/drive.h"
#include "tests/rig/gguf_write.h"
#include "tests/rig/tiny.h"
#include "tools/quantize/awq.h"
#include "tools/quantize/calibrate.h"
#include "tools/commands.h"
#include "tools/quantize/tensors_out.h"

#define N 100                      /* tokens of a text */

static char dir[] = "/tmp/slipring-test-quantize-XXXXXX";

static float noise(uint64_t *s)    /* [-1, 1) */
{
	*s = *s * 6364136223846793005u + 1442695040888963407u;
	return (float)((double)(int64_t)*s * 0x1p-63);
}

static struct matrix random_matrix(int32_t n, int32_t k, uint64_t seed)
{
	struct matrix m = { n, k, malloc((size_t)n * (size_t)k * sizeof(float)) };

	assert_non_null(m.w);
	for (int32_t i = 0; i < n * k; i++)
		m.w[i] = noise(&seed) + noise(&seed) + noise(&seed);
	return m;
}

/* ---- rounding ------------------------------------------------------------------------------- */

static void test_round(void **state)
{
	static const int32_t groups[] = { 32, 96 };

	(void)state;
	for (int g = 0; g < 2; g++) {
		struct matrix m = random_matrix(24, 96, 3);
		uint32_t qweight[96 * 3], qzeros[3 * 3];
		uint16_t scales[3 * 24];
		struct sr_tensor t = { .type = SR_AWQ4, .n = 24, .k = 96, .count = 1, .group = groups[g],
		                       .scale_type = SR_F16 };
		const struct apart at = { (uint8_t *)qweight, (uint8_t *)scales, (uint8_t *)qzeros, NULL };
		uint8_t rows[24 * 96];
		struct awq a;
		double error;

		for (int i = 0; i < 96; i++) {
			m.w[i] = 0;                    /* a row of zeros, */
			m.w[96 + i] = fabsf(m.w[96 + i]);    /* one above, */
			m.w[192 + i] *= 1e-9f;         /* one that f16 cannot hold, */
			m.w[288 + i] *= 1e9f;          /* on either side */
		}
		assert_int_equal(awq_create(&a, 24, 96, groups[g]), 0);
		error = awq_round(&a, &m, NULL);
		assert_true(isfinite(error));
		awq_pack(&a, qweight, qzeros, scales);
		assert_true(24 * repack_row_bytes(&t) <= sizeof(rows));
		repack_rows(&t, &at, 0, 24, rows);
		for (int i = 0; i < 24; i++) {
			float back[96];

			for (int k = 0; k < 96; k += 32)
				types_dequant_group(repack_type(&t), rows + (size_t)i * repack_row_bytes(&t), k, NULL, back + k);
			for (int j = 0; j < 96; j++) {
				float s = f32_of_f16(a.scale[(i * 96 + j) / groups[g]]);

				assert_true(fabsf(back[j] - m.w[i * 96 + j]) <= 0.0074f * s);
				assert_true(i != 0 || m.w[j] == 0);
			}
		}
		awq_destroy(&a);
		free(m.w);
		m = random_matrix(24, 96, 4);
		assert_int_equal(awq_create(&a, 24, 96, groups[g]), 0);
		error = awq_round(&a, &m, NULL);
		assert_true(error > 0.02 && error < 0.13);
		awq_destroy(&a);
		free(m.w);
	}
}

/* The error of outputs, for inputs of x's magnitudes, with weights scaled by s before rounding. */
static double output_error(const struct moments *x, const float *s)
{
	struct matrix m = random_matrix(64, 128, 9), was = random_matrix(64, 128, 9);
	struct awq a;
	double sum = 0;

	awq_scale_inputs(&m, s);
	assert_int_equal(awq_create(&a, 64, 128, 64), 0);
	awq_round(&a, &m, NULL);
	for (int i = 0; i < 64 * 128; i++) {
		double d = (double)(m.w[i] / s[i % 128] - was.w[i]);

		sum += d * d * x->square[i % 128] / (double)x->rows;
	}
	awq_destroy(&a);
	free(m.w);
	free(was.w);
	return sum;
}

static void test_search(void **state)
{
	double size[128], square[128];
	struct moments x = { 128, 10, size, square };
	struct matrix m = random_matrix(64, 128, 9);
	const struct matrix *of = &m;
	float one[128], s[128];
	double alpha;

	(void)state;
	for (int j = 0; j < 128; j++) {
		double typical = j % 40 == 7 ? 30 : 0.5;     /* a few inputs are large, as in real models */

		one[j] = 1;
		size[j] = 10 * typical;
		square[j] = 10 * typical * typical;
	}
	alpha = awq_search(&of, 1, 64, &x, s);
	assert_true(alpha > 0);
	assert_true(s[7] > 2 * s[8]);
	assert_true(output_error(&x, s) < 0.5 * output_error(&x, one));
	for (int j = 0; j < 128; j++) {
		size[j] = 10;
		square[j] = 10;
	}
	awq_search(&of, 1, 64, &x, s);
	for (int j = 0; j < 128; j++)
		assert_true(fabsf(s[j] - 1) < 1e-6f);         /* all equal: nothing to do */
	free(m.w);
}

/* ---- calibration ---------------------------------------------------------------------------- */

static void scores(const struct sr_model *m, const struct sr_source *src, const int32_t *id, int n,
                   double *out)
{
	struct sr_limits lim = drive_limits();
	struct drive d;

	if (drive_open(&d, sr_cpu_ops(), m, src, &lim))
		fail_msg("%s", d.err);
	drive_begin(&d, 0, NULL);
	drive_range(&d, 0, 3, 8);
	drive_row(&d, 0, 0, id, n - 1, n - 1, 0);
	drive_step(&d);
	for (int i = 0; i < n - 1; i++)
		out[i] = (double)d.batch->result[i].logprob;
	drive_close(&d);
}

/* The tiny model's bytes as a file. */
static int weights_file(const struct tiny *t, size_t bytes)
{
	char path[200];
	int fd;

	snprintf(path, sizeof(path), "%s/weights", dir);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, t->bytes, bytes), bytes);
	return fd;
}

static void test_calibrate(void **state)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_F32, TINY_BIAS | TINY_QK_NORM | TINY_UNTIED, 21);
	float *embed = tiny_dense(t, &t->m.embed), *norm = tiny_dense(t, &t->m.norm);
	float *head = tiny_dense(t, &t->m.head);
	double want[N], sum[N], hit[N];
	float *x = aligned_alloc(64, N * 64 * 4);
	const struct calibrate c = { N, 2 };
	int32_t id[N];
	char err[500];
	int fd = weights_file(t, t->size);

	(void)state;
	for (int i = 0; i < N; i++)
		id[i] = (i * 37 + 5) % 200;
	scores(&t->m, &t->src, id, N, want);
	for (int i = 0; i < N; i++) {
		memcpy(x + 64 * i, embed + 64 * id[i], 256);
		sum[i] = -INFINITY;
	}
	for (int l = 0; l < 2; l++) {
		struct inputs in;

		assert_int_equal(inputs_create(&in, &t->m, l), 0);
		if (calibrate_layer(&c, &t->m, &fd, l, x, &in, err, sizeof(err)) != 0)
			fail_msg("%s", err);
		for (int i = 0; i < N_INPUTS; i++) {
			assert_int_equal(in.of[i].rows, i == IN_Q ? 0 : N / 2);
			for (int j = 0; j < in.of[i].k; j++)
				assert_true(in.of[i].size[j] > 0 &&
				            in.of[i].square[j] * N / 2 >= in.of[i].size[j] * in.of[i].size[j] * 0.999);
		}
		inputs_destroy(&in);
	}
	calibrate_norm(&c, &t->m, norm, NULL, x);
	for (int v = 0; v < 200; v += 72)
		assert_int_equal(calibrate_head(&c, &t->m, &(struct matrix){ v + 72 > 200 ? 200 - v : 72, 64, head + 64 * v }, v,
		                                x, 10, id, sum, hit), 0);
	for (int i = 10; i < N - 1; i++)
		assert_true(fabs(hit[i] - sum[i] - want[i]) < 1e-3);
	close(fd);
	tiny_destroy(t);
	free(embed);
	free(norm);
	free(head);
	free(x);
}

/* ---- the command ---------------------------------------------------------------------------- */

static void put_file(const char *name, const char *text)
{
	char path[200];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	assert_non_null(f = fopen(path, "w"));
	assert_true(fputs(text, f) >= 0);
	fclose(f);
}

static void put_weights(struct tensors_out *o, const struct tiny *t, const struct sr_tensor *w,
                        const char *name, int *at)
{
	if (at[0] < 0) {
		at[0] = tensors_out_add(o, name, w->n == 1 ? "F32" : "BF16", w->n == 1 ? 4 : 2,
		                        w->n == 1 ? w->k : w->n,
		                        w->n == 1 ? 0 : w->k);
	} else if (w->n == 1) {
		float *f = tiny_dense(t, w);

		assert_int_equal(tensors_out_write(o, at[0], 0, f, 4 * (size_t)w->k), 0);
		free(f);
	} else {
		assert_int_equal(tensors_out_write(o, at[0], 0, t->bytes + w->data.offset, w->data.bytes), 0);
	}
}

/* The tiny model as a directory: with at[] all -1 the plan, else the bytes. */
static void put_model(struct tensors_out *o, const struct tiny *t, int *at)
{
	static const struct { size_t at; const char *name; } part[] = {
		{ offsetof(struct sr_layer, norm1), "input_layernorm" },
		{ offsetof(struct sr_layer, norm2), "post_attention_layernorm" },
		{ offsetof(struct sr_layer, q), "self_attn.q_proj" }, { offsetof(struct sr_layer,
		                                                                 k), "self_attn.k_proj" },
		{ offsetof(struct sr_layer, v), "self_attn.v_proj" }, { offsetof(struct sr_layer,
		                                                                 o), "self_attn.o_proj" },
		{ offsetof(struct sr_layer, gate), "mlp.gate_proj" }, { offsetof(struct sr_layer,
		                                                                 up), "mlp.up_proj" },
		{ offsetof(struct sr_layer, down), "mlp.down_proj" },
	};
	char name[100];

	put_weights(o, t, &t->m.embed, "model.embed_tokens.weight", at++);
	put_weights(o, t, &t->m.norm, "model.norm.weight", at++);
	for (int l = 0; l < 2; l++)
		for (unsigned i = 0; i < sizeof(part) / sizeof(*part); i++) {
			const char *y = (const char *)&t->m.layer[l];

			snprintf(name, sizeof(name), "model.layers.%d.%s.weight", l, part[i].name);
			put_weights(o, t, (const struct sr_tensor *)(const void *)(y + part[i].at), name,
			           at++);
		}
}

/* Multiply row (or column) j of a bf16 matrix: by powers of two, so nothing is rounded. */
static void multiply(struct tiny *t, const struct sr_tensor *w, bool row, int j, float by)
{
	for (int i = 0; i < (row ? w->k : w->n); i++) {
		uint64_t at = w->data.offset + 2 * (uint64_t)(row ? j * w->k + i : i * w->k + j);
		uint16_t u;

		memcpy(&u, t->bytes + at, 2);
		u = bf16_of_f32(f32_of_bf16(u) * by);
		memcpy(t->bytes + at, &u, 2);
	}
}

/* The same model, but some inputs of its matrices are 32 times as large as others, as in real ones. */
static void make_outliers(struct tiny *t)
{
	for (int l = 0; l < 2; l++)
		for (int j = 3; j < 96; j += 16) {
			struct sr_layer *y = &t->m.layer[l];
			struct sr_tensor *norm[2] = { &y->norm1, &y->norm2 };
			struct sr_tensor *reads[2][3] = { { &y->q, &y->k, &y->v }, { &y->gate, &y->up } };

			multiply(t, &y->up, true, j, 32);
			multiply(t, &y->down, false, j, 1 / 32.0f);
			for (int i = 0; i < 2 && j < 64; i++) {
				uint8_t *at = t->bytes + norm[i]->data.offset + 4 * j;
				float f;

				memcpy(&f, at, 4);
				f = 32 * (f + norm[i]->add) - norm[i]->add;
				memcpy(at, &f, 4);
				for (int p = 0; p < 3; p++)
					if (reads[i][p])
						multiply(t, reads[i][p], false, j, 1 / 32.0f);
			}
		}
}

/* Every printable character is a token, ids as ASCII. */
static void put_tokenizer(void)
{
	char text[4096];
	int n = snprintf(text, sizeof(text), "{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
	                 "\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
	                 "\"added_tokens\":[],"
	                 "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"\\u0120\":32");

	for (int c = 33; c < 127; c++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, ",\"%s%c\":%d",
		              strchr("\"\\", c) ? "\\" : "", c, c);
	snprintf(text + n, sizeof(text) - (size_t)n, "}}}");
	put_file("in/tokenizer.json", text);
	put_file("in/tokenizer_config.json", "{}");
}

static void put_directory(const struct tiny *t)
{
	char path[200];
	struct tensors_out *o;
	int at[20];

	memset(at, -1, sizeof(at));
	snprintf(path, sizeof(path), "%s/in", dir);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/in/model.safetensors", dir);
	assert_non_null(o = tensors_out_create(path));
	put_model(o, t, at);
	assert_int_equal(tensors_out_begin(o), 0);
	assert_int_equal(tensors_out_finish(o), -EINVAL);  /* nothing is written yet */
	put_model(o, t, at);
	assert_int_equal(tensors_out_finish(o), 0);
	tensors_out_destroy(o);
	put_file("in/config.json", "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,"
	         "\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
	         "\"num_key_value_heads\":2,"
	         "\"vocab_size\":200,\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,"
	         "\"rope_theta\":10000.0,"
	         "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\"}");
	put_tokenizer();
}

/* The same model as a GGUF file: rows of q and k as rope pairs them there, the same ids for text. */
static const struct { const char *name; size_t at; int heads; } gguf_part[] = {
	{ "attn_norm", offsetof(struct sr_layer, norm1), 0 }, { "ffn_norm", offsetof(struct sr_layer, norm2), 0 },
	{ "attn_q", offsetof(struct sr_layer, q), 4 },        { "attn_k", offsetof(struct sr_layer, k), 2 },
	{ "attn_v", offsetof(struct sr_layer, v), 0 },        { "attn_output", offsetof(struct sr_layer, o), 0 },
	{ "ffn_gate", offsetof(struct sr_layer, gate), 0 },   { "ffn_up", offsetof(struct sr_layer, up), 0 },
	{ "ffn_down", offsetof(struct sr_layer, down), 0 },
};
#define N_PARTS (sizeof(gguf_part) / sizeof(*gguf_part))

static const struct sr_tensor *gguf_tensor_of(const struct tiny *t, int l, unsigned part)
{
	return (const struct sr_tensor *)(const void *)((const char *)&t->m.layer[l] + gguf_part[part].at);
}

static void put_entry(struct bytes *w, const struct sr_tensor *t, const char *name, uint64_t *offset)
{
	put_tensor(w, name, t->n == 1 ? 1 : 2, (uint64_t)t->k, (uint64_t)t->n, t->n == 1 ? 0 : 30, *offset);
	*offset += ((uint64_t)t->n * (uint64_t)t->k * (t->n == 1 ? 4 : 2) + 31) / 32 * 32;
}

static void put_data(struct bytes *w, const struct tiny *t, const struct sr_tensor *part, int heads)
{
	float *f = tiny_dense(t, part);
	int E = heads ? part->n / heads : 1;

	if (part->n == 1)
		put(w, f, 4 * (size_t)part->k);
	for (int i = 0; part->n > 1 && i < part->n; i++) {
		int row = heads ? i / E * E + i % 2 * E / 2 + i % E / 2 : i;

		put(w, t->bytes + part->data.offset + (size_t)row * 2 * (size_t)part->k, 2 * (size_t)part->k);
	}
	put_pad(w, 32);
	free(f);
}

static void put_vocabulary(struct bytes *w)
{
	put_kv_str(w, "tokenizer.ggml.model", "gpt2");
	put_kv_str(w, "tokenizer.ggml.pre", "gpt-2");
	put_kv_u32(w, "tokenizer.ggml.eos_token_id", 1);
	put_key(w, "tokenizer.ggml.tokens", 9);
	put_u32(w, 8);
	put_u64(w, 200);
	for (int id = 0; id < 200; id++) {
		char name[20];

		snprintf(name, sizeof(name), id > 32 && id < 127 ? "%c" : id == 32 ? "\u0120" : "<%d>", id);
		put_str(w, name);
	}
	put_key(w, "tokenizer.ggml.merges", 9);
	put_u32(w, 8);
	put_u64(w, 0);
}

/* SentencePiece: bytes, letters, and some words with better scores the longer they are. */
static void put_pieces(struct bytes *w)
{
	static const char *const words[] = { "\u2581", "ab", "abc", "\u2581a", "\u2581ab", "bc", "cd", "abcd", "de", "\u2581de" };
	const int n = 400, letters = 259, first = letters + 26;

	put_kv_str(w, "tokenizer.ggml.model", "llama");
	put_kv_u32(w, "tokenizer.ggml.bos_token_id", 1);
	put_kv_u32(w, "tokenizer.ggml.eos_token_id", 2);
	put_kv_u32(w, "tokenizer.ggml.unknown_token_id", 0);
	for (int key = 0; key < 3; key++) {
		put_key(w, key == 0 ? "tokenizer.ggml.tokens" : key == 1 ? "tokenizer.ggml.scores" : "tokenizer.ggml.token_type", 9);
		put_u32(w, key == 0 ? 8 : key == 1 ? 6 : 5);
		put_u64(w, (uint64_t)n);
		for (int id = 0; id < n; id++) {
			int word = id - first;
			float score = word >= 0 && word < 10 ? -1.0f - (float)(word * 7 % 10) : -100 - (float)id;
			char name[40];

			if (id < 3 || (word >= 0 && word < 10))
				snprintf(name, sizeof(name), "%s", id == 0 ? "<unk>" : id == 1 ? "<s>" : id == 2 ? "</s>" : words[word]);
			else if (id < first)
				snprintf(name, sizeof(name), id < letters ? "<0x%02X>" : "%c", id < letters ? id - 3 : 97 + id - letters);
			else
				snprintf(name, sizeof(name), "<%d>", id);
			if (key == 0)
				put_str(w, name);
			else if (key == 1)
				put(w, &score, 4);
			else
				put_u32(w, id == 0 ? 2 : id < 3 ? 3 : id < letters ? 6 : 1);
		}
	}
}

static void put_gguf(const struct tiny *t, bool pieces)
{
	static struct bytes w;
	uint64_t offset = 0;
	char path[200];
	FILE *f;

	put_head(&w, 3, 2 + 2 * N_PARTS, pieces ? 15 : 13);
	put_kv_str(&w, "general.architecture", "llama");
	put_kv_u32(&w, "llama.block_count", 2);
	put_kv_u32(&w, "llama.context_length", 512);
	put_kv_u32(&w, "llama.embedding_length", 64);
	put_kv_u32(&w, "llama.feed_forward_length", 96);
	put_kv_u32(&w, "llama.attention.head_count", 4);
	put_kv_u32(&w, "llama.attention.head_count_kv", 2);
	put_kv_f32(&w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
	(pieces ? put_pieces : put_vocabulary)(&w);
	put_entry(&w, &t->m.embed, "token_embd.weight", &offset);
	put_entry(&w, &t->m.norm, "output_norm.weight", &offset);
	for (unsigned i = 0; i < 2 * N_PARTS; i++) {
		char name[40];

		snprintf(name, sizeof(name), "blk.%d.%s.weight", (int)(i / N_PARTS), gguf_part[i % N_PARTS].name);
		put_entry(&w, gguf_tensor_of(t, (int)(i / N_PARTS), i % N_PARTS), name, &offset);
	}
	put_pad(&w, 32);
	put_data(&w, t, &t->m.embed, 0);
	put_data(&w, t, &t->m.norm, 0);
	for (unsigned i = 0; i < 2 * N_PARTS; i++)
		put_data(&w, t, gguf_tensor_of(t, (int)(i / N_PARTS), i % N_PARTS), gguf_part[i % N_PARTS].heads);
	snprintf(path, sizeof(path), "%s/%s.gguf", dir, pieces ? "pieces" : "in");
	assert_non_null(f = fopen(path, "w"));
	assert_int_equal(fwrite(w.b, 1, w.n, f), w.n);
	fclose(f);
}

static void same_bytes(const char *a, const char *b)
{
	static uint8_t of[2][1 << 20];
	size_t n[2];

	for (int i = 0; i < 2; i++) {
		FILE *f = fopen(i ? b : a, "r");

		assert_non_null(f);
		n[i] = fread(of[i], 1, sizeof(of[i]), f);
		fclose(f);
	}
	assert_true(n[0] > 0 && n[0] < sizeof(of[0]));
	assert_int_equal(n[0], n[1]);
	assert_memory_equal(of[0], of[1], n[0]);
}

static void same_ids(const char *a, const char *b, const char *text)
{
	int32_t id[2][2000];
	int64_t n[2];

	for (int i = 0; i < 2; i++) {
		struct sr_text *t;
		char err[500];

		if (sr_text_open(&t, i ? b : a, err, sizeof(err)) != 0)
			fail_msg("%s", err);
		n[i] = sr_text_encode(t, text, strlen(text), SR_TEXT_SPECIAL_ADD, id[i], 2000, 2000);
		sr_text_close(t);
	}
	assert_true(n[0] > 0 && n[0] <= 2000);
	assert_int_equal(n[0], n[1]);
	assert_memory_equal(id[0], id[1], (size_t)n[0] * sizeof(id[0][0]));
}

/* One file, read as it is asked for. */
struct reader { int fd; struct { uint64_t tag; void *at; } done[64]; int n; };

static int reader_read(void *ctx, const struct sr_extent *e, uint64_t from, size_t n, void *buf, uint64_t tag)
{
	struct reader *r = ctx;

	if (r->n == 64)
		return -EAGAIN;
	assert_int_equal(pread(r->fd, buf, n, (off_t)(e->offset + from)), n);
	r->done[r->n].tag = tag;
	r->done[r->n++].at = buf;
	return 0;
}

static int reader_wait(void *ctx, uint64_t *tag, void **at)
{
	struct reader *r = ctx;

	*tag = r->done[--r->n].tag;
	*at = r->done[r->n].at;
	return 0;
}

/* Log-probabilities of the text by the model in dir/name. */
static void scores_of(const char *name, const char *text, const char *quantization, double *logprob)
{
	struct reader r = { 0 };
	const struct sr_source src = { .ctx = &r, .read = reader_read, .wait = reader_wait };
	char path[200], err[1000];
	struct model *md;
	int32_t id[N];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (model_open(&md, path, err, sizeof(err)) != 0)
		fail_msg("%s", err);
	assert_string_equal(md->quantization, quantization);
	r.fd = open(md->file[0], O_RDONLY);
	assert_true(r.fd >= 0);
	for (int i = 0; i < N; i++)
		id[i] = text[i];
	scores(&md->m, &src, id, N, logprob);
	close(r.fd);
	model_close(md);
}

/* Mean difference of the log-probabilities of a quantized model and of the one it was made from. */
static double difference(const char *name, const char *text)
{
	double was[N], is[N], sum = 0;

	scores_of("in", text, "", was);
	scores_of(name, text, "awq", is);
	for (int i = 0; i < N - 1; i++)
		sum += fabs(was[i] - is[i]) / (N - 1);
	print_message("%s: mean difference %.3f\n", name, sum);
	return sum;
}

static int quantize(const char *line)
{
	char text[500], *argv[20] = { (char *)(uintptr_t)"quantize" };
	int argc = 1, rc, out = dup(1), null = open("/dev/null", O_WRONLY);

	snprintf(text, sizeof(text), "%s", line);
	for (char *s = strtok(text, " "); s; s = strtok(NULL, " "))
		argv[argc++] = s;
	fflush(stdout);
	dup2(null, 1);
	rc = cmd_quantize(argc, argv);
	fflush(stdout);
	dup2(out, 1);
	close(out);
	close(null);
	return rc;
}

static void test_command(void **state)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_BF16, 0, 5);
	char text[1200], path[200];
	double plain, searched;
	uint64_t seed = 1;
	struct stat st;

	(void)state;
	assert_int_equal(chdir(dir), 0);
	make_outliers(t);
	put_directory(t);
	for (int i = 0; i < 1100; i++)
		text[i] = (char)(97 + (int)(13 + 13 * noise(&seed)));
	text[1100] = 0;
	put_file("text", text);
	put_file("short", "too short");
	assert_int_equal(quantize("in --out out/there"),
	                 1);                   /* no such folder to make it in */
	assert_int_equal(quantize("in"), 2);
	assert_int_equal(quantize("in --out out --format gptq"), 2);
	assert_int_equal(quantize("in --out out --group-size 33"), 2);
	assert_int_equal(quantize("in --out out --group-size 64"), 1);         /* does not divide 96 */
	assert_int_equal(quantize("in --out out --group-size 32 --scale-search missing"), 1);
	assert_int_equal(quantize("in --out out --group-size 32 --scale-search short"), 1);
	snprintf(path, sizeof(path), "%s/out/model.safetensors.part", dir);
	assert_int_equal(stat(path, &st), -1);                                 /* these leave nothing behind */
	assert_int_equal(quantize("in --out plain --group-size=32"), 0);
	assert_int_equal(quantize("in --out out --group-size 32 --scale-search text --tensors"), 0);
	assert_int_equal(quantize("in --out out --group-size 32"), 1);         /* there is a model already */
	assert_int_equal(quantize("out --out again --group-size 32"), 1);      /* it is quantized already */
	assert_int_equal(quantize("in --out row --group-size -1"), 0);
	plain = difference("plain", text);
	searched = difference("out", text);
	assert_true(searched < 1.5 && searched < plain / 2);   /* the search exists for such outliers */
	assert_true(plain < 5 && difference("row", text) < 5);
	snprintf(path, sizeof(path), "%s/out/tokenizer.json", dir);
	assert_int_equal(stat(path, &st), 0);
	put_gguf(t, false);
	assert_int_equal(quantize("in.gguf --out from-gguf --group-size 32 --loss text"), 0);
	same_bytes("from-gguf/model.safetensors", "plain/model.safetensors");
	same_ids("from-gguf", "in", text);
	assert_true(difference("from-gguf", text) == plain);
	tiny_destroy(t);
}

/* A GGUF with a SentencePiece vocabulary: its tokenizer.json gives the same ids. */
static void test_pieces(void **state)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t;
	uint64_t seed = 3;
	char text[400];

	(void)state;
	shape.n_vocab = 400;
	t = tiny_create(&shape, SR_BF16, 0, 5);
	assert_int_equal(chdir(dir), 0);
	put_gguf(t, true);
	assert_int_equal(quantize("pieces.gguf --out from-pieces --group-size 32"), 0);
	for (int i = 0; i < 399; i++)
		text[i] = "abcde \xc3\xa9z"[(int)(4.5f + 4.5f * noise(&seed))];
	text[399] = 0;
	same_ids("from-pieces", "pieces.gguf", "ab abc abcd  de cde\n \u00e9 z");
	same_ids("from-pieces", "pieces.gguf", " abcd");
	same_ids("from-pieces", "pieces.gguf", text);
	tiny_destroy(t);
}

static int setup(void **state)
{
	(void)state;
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	char command[200];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	return chdir("/") || system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round), cmocka_unit_test(test_search), cmocka_unit_test(test_calibrate),
		cmocka_unit_test(test_command), cmocka_unit_test(test_pieces),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
