/* slipringd.h - the whole daemon, core/main.c and all, in a child of the test, on the null device
 * and a model of two files.  Linked with SLIPRINGD; the test is its client.
 */
#ifndef TESTS_SLIPRINGD_H
#define TESTS_SLIPRINGD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>

int slipringd_main(int argc, char **argv);
#define main slipringd_main
#include "core/main.c"
#undef main

#include <cmocka.h>                   /* after main.c, for it has a fail() of its own */

#include "shmring/slipring.h"

struct home { char dir[40], model[64], socket[64], log[64]; };

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

/* A daemon in a child, its log in the home; `before` runs in the child.  Ends by itself after a
 * minute, whatever happens. */
static inline pid_t home_start(struct home *h, void (*before)(void), const char *step_us)
{
	char *argv[] = { "slipringd", "--device", "null", "--load-format", "dummy", "--null-step-us",
		(char *)step_us, "--num-gpu-blocks-override", "4096", "--max-num-seqs", "64", h->model, NULL };
	pid_t pid = fork();

	if (pid)
		return pid;
	alarm(60);
	if (!freopen(h->log, "w", stderr))
		_exit(99);
	if (before)
		before();
	exit(slipringd_main(sizeof(argv) / sizeof(argv[0]) - 1, argv));
}

/* Connected, once it is there; ten seconds at most. */
static inline struct sr_conn *home_connect(struct home *h, uint32_t live, uint32_t tokens)
{
	struct sr_options o = { .size = sizeof(o), .live = live, .tokens = tokens };
	struct sr_conn *c;

	for (int i = 0; i < 10000; i++) {
		if (sr_open(&c, h->socket, &o) == 0)
			return c;
		usleep(1000);
	}
	fail_msg("no daemon at %s", h->socket);
	return NULL;
}

/* SIGTERM, and its exit code; -signal if it did not exit. */
static inline int home_stop(pid_t pid)
{
	int status;

	if (pid <= 0)
		return 0;
	kill(pid, SIGTERM);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Memory that the child and we share. */
static inline void *home_share(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED);
	return p;
}

#endif
