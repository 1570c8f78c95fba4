/* kv_events.h - --kv-events-config: vLLM's JSON object, and three members of ours. */
#ifndef KV_EVENTS_H
#define KV_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KV_EVENTS_TEXT 256

#define KV_EVENTS_HERE "tcp://lo:5557"  /* the loopback interface: events hold prompts */

struct kv_events {
	bool on;                     /* enable_kv_cache_events, and publisher is not "null" */
	bool arrays;                 /* encoding: "array", as vLLM had it before 0.23; else "map" */
	char endpoint[KV_EVENTS_TEXT];  /* where events are published: tcp://.. or ipc://.. */
	char replay[KV_EVENTS_TEXT]; /* replay_endpoint; "": none */
	char topic[KV_EVENTS_TEXT];
	bool topic_given;
	char user[64];               /* who else may read the daemon's events; "": nobody */
	int64_t steps;               /* buffer_steps: batches kept for a replay */
	int64_t hwm;                 /* batches that wait for one slow subscriber */
};

/* text: NULL or "{}": off.  0; -EINVAL and one sentence. */
int  kv_events_parse(struct kv_events *out, const char *text, char *err, size_t errlen);

#endif
