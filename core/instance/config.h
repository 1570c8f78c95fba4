/* config.h - every setting of the daemon, the adapter and `slipring serve`, in one struct.  Parsing
 * and --help come from one table of options (options.c).
 *
 * Names are vLLM's where vLLM has the same setting.  - and _ inside a flag are equal.  Booleans have
 * --x and --no-x; other flags --x=V and --x V.  Where marked, integers take k m g t (powers of 1000,
 * decimals allowed) and K M G T (of 1024).  --config FILE.yaml: keys are flag names, and the command
 * line overrides them.  Flags of vLLM without meaning here are accepted at their default or harmless
 * values, and otherwise refused by name.  Unknown: -EINVAL and "did you mean --y?".
 */
#ifndef CONFIG_H
#define CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum config_device { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA, DEVICE_NULL };
enum config_scope  { SCOPE_UID, SCOPE_TENANT, SCOPE_GLOBAL };
enum config_runner { RUNNER_AUTO, RUNNER_GENERATE, RUNNER_POOLING };
enum config_ui     { UI_OFF, UI_LOCAL, UI_ON };
enum config_w4_activations { W4_BF16, W4_FP8 }; /* beside weights of 4 bits, on a GPU */
enum config_run_mode { RUN_AUTO, RUN_DEDICATED, RUN_INLINE, RUN_WAITING };

#define CONFIG_LIST 16
#define CONFIG_AS_VLLM "SLIPRING_AS_VLLM" /* environment: `slipring` was called as `vllm`, and its defaults are */

struct config {
	/* model */
	const char *model;                    /* as given; NULL = the default model */
	const char *served_name[CONFIG_LIST]; /* --served-model-name a b */
	int      n_served_names;
	int64_t  max_model_len;               /* 0 = the model's, -1 = auto */
	const char *dtype;                    /* auto half float16 bfloat16 float float32 */
	const char *quantization;             /* NULL = by the model's files */
	const char *load_format;              /* auto safetensors gguf dummy */
	const char *generation_config;        /* auto, vllm, or a directory (core/models/defaults.h) */
	const char *override_generation_config; /* JSON; NULL = none */
	const char *tokenizer;                /* NULL = the model's */
	uint64_t seed;
	enum config_runner runner;            /* are answers tokens or vectors?  auto: as the model's files say */

	/* device and memory */
	enum config_device device;
	int      threads;                     /* 0 = the number of CPUs in the affinity mask */
	int      tensor_parallel_size;        /* processes that each hold a part of the model: ranks, 1 */
	bool     rank_process;                /* the device is opened by a process of its own even if there is one rank */
	bool     enforce_deterministic;       /* batch-invariant kernels; the CPU's always are */
	enum config_w4_activations w4_activations;
	bool     self_check;                  /* special kernels are held to plain ones at start */
	bool     enforce_eager;               /* no captured graphs */
	enum config_run_mode run_mode;        /* how the daemon's thread waits: core/idle.h */
	double   gpu_memory_utilization;      /* 0.92 */
	bool     gpu_memory_utilization_given;
	int64_t  kv_cache_memory_bytes;       /* 0 = by the plan */
	int64_t  num_gpu_blocks_override;     /* 0 = none */
	int      block_size;                  /* 16 */
	double   kv_offloading_size;          /* GiB of host memory for evicted blocks; 0 = none */
	int64_t  max_states;                  /* 0 = by the plan */
	const char *kv_cache_dtype;           /* auto */
	bool     enable_prefix_caching;       /* true */
	bool     disable_hybrid_kv_cache_manager; /* windows keep everything */
	enum config_scope prefix_cache_scope; /* tenant */
	const char *pooler_config;            /* JSON (core/models/pooling.h); NULL = as the model's files say */
	const char *kv_events_config;         /* JSON (kv_events.h); NULL = no events */
	double   null_step_us, null_token_us; /* --device null: pace */

	/* scheduler */
	int64_t  max_num_seqs;                /* 0 = by device: CPU 128 */
	int64_t  max_num_batched_tokens;      /* 0 = by device: CPU 2048 */
	int64_t  max_guided_seqs;             /* 0 = max_num_seqs and an eighth more */
	const char *knob_ceiling;             /* how far the first two can be raised; NULL = as far as is cheap */
	int64_t  long_prefill_token_threshold;/* 0 = off */
	bool     enable_chunked_prefill;      /* true; false needs batched tokens >= max_model_len */
	const char *scheduling_policy;        /* fcfs, priority */
	bool     scheduler_reserve_full_isl;  /* true */
	double   step_target_ms;              /* 0 = by device: CPU 50 */
	int64_t  max_num_queued_reqs, max_num_queued_tokens; /* 4096, 2 Mi */
	const char *speculative[CONFIG_LIST]; /* members of a JSON object, see PARTS in options.h; and what they say: */
	int      n_speculative;
	int      draft_most;                  /* guesses of a row; 0 = none */
	int      draft_least, draft_longest;  /* ids that stand in the sequence once more */

	/* instance */
	const char *instance;                 /* "default" */
	const char *socket;                   /* NULL = <run dir>/slipring.sock */
	const char *socket_group;             /* NULL = unchanged */
	const char *operator_group;           /* group that may use slipring set; NULL = our uid and root only */
	int      max_clients;
	const char *gateway_user;             /* user whose requests may name tenants; NULL = our own uid */
	double   shutdown_timeout;            /* seconds of draining, 30 */
	const char *kv_save;                  /* a folder for cached prefixes, or NULL */
	int64_t  kv_save_size;                /* bytes of the file there */
	double   hang_timeout;                /* seconds without a turn after which serve kills a child, 5; 0: never */
	double   daemon_wait;                 /* seconds that requests are held while the daemon is away, 10 */
	int      data_parallel_size;          /* daemons that serve the model: replicas, 1 */
	int      data_parallel_size_local;    /* 0 = not given, else equal to the one before */
	int      data_parallel_rank;          /* -1 = all of them; else this program belongs to that one alone */
	bool     data_parallel_external_lb;   /* vLLM's word for "this program belongs to one alone" */
	bool     disable_log_stats;
	const char *log_level;                /* --uvicorn-log-level / --log-level: debug info .. */

	/* HTTP */
	const char *host;                     /* 127.0.0.1 */
	int      port;                        /* 8000; 0 = any, printed */
	const char *uds;
	bool     tokens_only;                 /* no route that reads or writes text */
	enum config_ui ui;                    /* to whom the page is served; local: this machine */
	bool     ui_knobs;                    /* without keys, the page on this machine may turn knobs */
	const char *ready_file;               /* file to which the URL is written when READY */
	const char *api_key[CONFIG_LIST];     /* default: VLLM_API_KEY and SLIPRING_API_KEY */
	int      n_api_keys;
	const char *api_key_file;             /* one "key [name]" a line; reread on SIGHUP */
	const char *ssl_keyfile, *ssl_certfile, *ssl_ca_certs;
	int      ssl_cert_reqs;
	bool     enable_ssl_refresh;
	const char *root_path;
	const char *allowed_hosts[CONFIG_LIST]; /* accepted Host values if no key is set; "*" = any */
	int      n_allowed_hosts;
	const char *allowed_origins, *allowed_methods, *allowed_headers; /* JSON lists; off unless given */
	bool     allow_credentials;
	int      api_server_count;            /* 1 */
	int      max_connections;             /* 4096 */
	int64_t  max_body_bytes;              /* 64 MiB */
	const char *chat_template;            /* a file or the template itself */
	const char *chat_template_content_format;
	const char *response_role;            /* assistant */
	int      max_logprobs;                /* 20 */
	int      stream_interval;             /* 1 */
	bool     return_tokens_as_token_ids, enable_prompt_tokens_details,
	         enable_server_load_tracking, enable_force_include_usage, enable_request_id_headers,
	         disable_access_log, metrics_old_names;
	const char *structured_outputs[CONFIG_LIST]; /* members of a JSON object, see PARTS in options.h */
	int      n_structured_outputs;
	const char *tool_call_parser, *reasoning_parser, *reasoning_field;
	const char *template_kwargs[CONFIG_LIST]; /* as structured_outputs */
	int      n_template_kwargs;
	bool     exclude_tools;               /* with tool_choice "none" */
	int      metrics_port;                /* 0 = /metrics is on the main port */
	const char *metrics_key;              /* key that /metrics requires; NULL = open */

	const char *stop_when_idle;           /* 900, 15m, 1h: stop after so long without a request; "0" = never */
	double   stop_when_idle_s;            /* the same in seconds */
	const char *models;                   /* --models: a file with a line for each of several models */
	const char *config_file;              /* the last --config; NULL = none */

	/* private: memory that the parser allocated; config_free releases it */
	void *owned;
};

enum config_for { FOR_DAEMON = 1, FOR_HTTP = 2, FOR_SERVE = 4 };

/* argv[0] is skipped; the first word that is no flag is MODEL.  0; 1 = --help or --version was
 * printed and the program should exit with 0; -EINVAL and one sentence in err.  Flags of the other
 * programs are checked, too, so all programs can be given the same words or the same file.  If a flag
 * is accepted but does nothing, its program prints a line on stderr (FOR_SERVE prints none, because
 * its two children do). */
int  config_parse(struct config *c, int argc, char **argv, enum config_for who,
                  char *err, size_t errlen);
void config_free(struct config *c);

/* The names of one program's flags whose values differ, in the table's order.  Returns how many,
 * at most `most`. */
int  config_differ(const struct config *a, const struct config *b, enum config_for who,
                   const char **name, int most);

/* topic: NULL = the list of topics with the most used flags, "all", a topic, or a flag.  -EINVAL:
 * it is none of these, and nothing is written. */
int  config_help(FILE *to, const char *topic, enum config_for who);

/* The directory of an instance's socket and stats page: $RUNTIME_DIRECTORY/NAME,
 * /run/slipring/NAME for root, else $XDG_RUNTIME_DIR/slipring/NAME, else /tmp/slipring-UID/NAME
 * (made with 0700 and checked to be ours).  NAME "default" adds no directory of its own.
 * 0, -ENAMETOOLONG, -EINVAL a bad name.  find: for programs that only look, such as the tools; also
 * -EPERM if the one in /tmp is not ours, which config_socket refuses, too.  why: a clause for users. */
int  config_run_dir(const char *instance, char *out, size_t n);
int  config_find_run_dir(const char *instance, char *out, size_t n);
const char *config_run_dir_why(int rc);
int  config_make_run_dir(const char *dir, char *err, size_t errlen);
int  config_socket(const struct config *c, char *out, size_t n);

/* With --data-parallel-size above 1 each daemon is an instance: NAME-0, NAME-1, ..  replicas: how many of
 * them a program deals with.  replica: *out is *c with the instance and the rank of the i-th of these;
 * name[] holds the instance's name and must last as long as *out, which must not be freed. */
#define CONFIG_INSTANCE 64
int  config_replicas(const struct config *c);
void config_replica(const struct config *c, int i, struct config *out, char name[CONFIG_INSTANCE]);

/* --models: several models behind one address.  The command line of each is *argv with the words of its line
 * behind it; config_parse() takes it.  free: also after an error. */
struct config_words { char *name, **argv; int argc; };
struct config_models {
	struct config_words model[CONFIG_LIST];
	int n;
	/* private */
	int argc;
	char **argv, *text;
	char flag_instance[16], flag_served[24];
};
int  config_models_read(struct config_models *m, const char *path, int argc, char **argv, char *err,
                        size_t errlen);
void config_models_free(struct config_models *m);

/* The nearest of n names to a misspelt one, or NULL: for "did you mean". */
const char *config_nearest(const char *wrong, const char *const *name, int n);

#endif
