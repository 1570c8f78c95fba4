/* home.h - a run directory of the test's own, with a small model for the null device.  Tests that start
 * whole programs share it.
 */
#ifndef TESTS_HOME_H
#define TESTS_HOME_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct home { char dir[40], model[64], socket[64], log[64]; const char *run_mode; /* NULL: auto */ };

static struct home home;              /* this program's */

static inline void home_write(const char *dir, const char *name, const char *text)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static inline void home_make(struct home *h)
{
	strcpy(h->dir, "/tmp/slipring-test-XXXXXX");
	assert_non_null(mkdtemp(h->dir));
	snprintf(h->model, sizeof(h->model), "%s/model", h->dir);
	snprintf(h->socket, sizeof(h->socket), "%s/slipring.sock", h->dir);
	snprintf(h->log, sizeof(h->log), "%s/log", h->dir);
	assert_int_equal(mkdir(h->model, 0700), 0);
	home_write(h->model, "config.json", "{\"model_type\": \"llama\", \"architectures\": "
		"[\"LlamaForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 128, \"num_hidden_layers\": "
		"1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 256, "
		"\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, "
		"\"tie_word_embeddings\": true, \"bos_token_id\": 1, \"eos_token_id\": 2, \"hidden_act\": \"silu\", "
		"\"torch_dtype\": \"bfloat16\"}");
	home_write(h->model, "tokenizer.json", "{\"version\": \"1.0\", \"added_tokens\": [], \"model\": "
		"{\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}}");
	setenv("RUNTIME_DIRECTORY", h->dir, 1);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("LISTEN_FDS");
}

static inline void home_remove(struct home *h)
{
	char command[80];

	snprintf(command, sizeof(command), "rm -rf %s", h->dir);
	assert_int_equal(system(command), 0);
}

/* For cmocka: the setup of a group that needs nothing else. */
static inline int home_setup(void **state)
{
	(void)state;
	home_make(&home);
	return 0;
}

static inline int home_teardown(void **state)
{
	(void)state;
	home_remove(&home);
	return 0;
}

/* Memory shared with the child. */
static inline void *home_share(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED);
	return p;
}

#endif
