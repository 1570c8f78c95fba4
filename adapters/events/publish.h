/* publish.h - batches to subscribers, over ZeroMQ as vLLM's ZmqEventPublisher sends them.
 *
 *	PUB     topic, number (8 bytes, big-endian), batch     subscribers that are too slow miss some
 *	ROUTER  asked: "", first number; answers: "", topic, number, batch ..; at the end number -1, no batch
 *
 * The last batches are kept for replays.  With arrays, answers of a replay have no topic: as vLLM had it
 * then.  One thread.
 */
#ifndef PUBLISH_H
#define PUBLISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/instance/kv_events.h"

#define PUBLISH_KEPT (64u << 20) /* most bytes of batches that are kept */

struct publisher;

/* rank: added to the ports of endpoints, as vLLM does.  0, or -errno and one sentence. */
int  publish_create(struct publisher **out, void *zmq, const struct kv_events *cfg, const char *topic,
                    int rank, char *err, size_t errlen);
void publish_destroy(struct publisher *p);

/* 0 or -ENOMEM: the batch has its number, so subscribers see that they miss it. */
int  publish_send(struct publisher *p, const unsigned char *batch, size_t n);

/* Read what is asked.  True: somebody asks for batches that are no longer kept, so all should be told anew
 * before publish_answer. */
bool publish_asked(struct publisher *p);

/* Send what replays are owed, as far as it goes without waiting.  True: more is owed. */
bool publish_answer(struct publisher *p);

void *publish_socket(const struct publisher *p); /* to be polled for ZMQ_POLLIN; NULL: no replays */
uint64_t publish_number(const struct publisher *p); /* of the next batch */

#endif
