/* batch.c - see batch.h.  Sources: vLLM's vllm/distributed/kv_events.py, and the msgpack specification. */
#include "batch.h"

#include <stdlib.h>
#include <string.h>

/* ---- msgpack ---- */

static unsigned char *room(struct packed *p, size_t n)
{
	if (p->room - p->n < n) {
		size_t more = (p->room + n) * 2;
		unsigned char *at = realloc(p->at, more);

		if (!at) {
			p->failed = true;
			return NULL;
		}
		p->at = at;
		p->room = more;
	}
	p->n += n;
	return p->at + p->n - n;
}

/* A tag, and `bytes` bytes of a number, the highest first. */
static void put_number(struct packed *p, unsigned char tag, uint64_t v, int bytes)
{
	unsigned char *to = room(p, (size_t)bytes + 1);

	if (!to)
		return;
	*to++ = tag;
	while (bytes-- > 0)
		*to++ = (unsigned char)(v >> bytes * 8);
}

static void put_uint(struct packed *p, uint64_t v)
{
	if (v < 0x80)
		put_number(p, (unsigned char)v, 0, 0);
	else if (v <= UINT8_MAX)
		put_number(p, 0xcc, v, 1);
	else if (v <= UINT16_MAX)
		put_number(p, 0xcd, v, 2);
	else if (v <= UINT32_MAX)
		put_number(p, 0xce, v, 4);
	else
		put_number(p, 0xcf, v, 8);
}

static void put_array(struct packed *p, uint32_t n)
{
	if (n < 16)
		put_number(p, (unsigned char)(0x90 | n), 0, 0);
	else if (n <= UINT16_MAX)
		put_number(p, 0xdc, n, 2);
	else
		put_number(p, 0xdd, n, 4);
}

static void put_map(struct packed *p, uint32_t n) { put_number(p, (unsigned char)(0x80 | n), 0, 0); }
static void put_nil(struct packed *p)             { put_number(p, 0xc0, 0, 0); }

/* Of fewer than 32 bytes. */
static void put_text(struct packed *p, const char *s)
{
	size_t n = strlen(s);
	unsigned char *to = room(p, n + 1);

	if (!to)
		return;
	*to = (unsigned char)(0xa0 | n);
	memcpy(to + 1, s, n);
}

static void put_double(struct packed *p, double v)
{
	uint64_t bits;

	memcpy(&bits, &v, sizeof(bits));
	put_number(p, 0xcb, bits, 8);
}

/* ---- events ---- */

/* The name of a member, which arrays do without. */
static void key(struct batch *b, const char *name)
{
	if (!b->arrays)
		put_text(&b->events, name);
}

/* An event with so many members besides its type. */
static void begin(struct batch *b, const char *type, uint32_t members)
{
	if (b->arrays)
		put_array(&b->events, members + 1);
	else
		put_map(&b->events, members + 1);
	key(b, "type");
	put_text(&b->events, type);
	b->n_events++;
}

static void put_names(struct batch *b)
{
	key(b, "block_hashes");
	put_array(&b->events, b->n_names);
	for (uint32_t i = 0; i < b->n_names; i++)
		put_uint(&b->events, b->name[i]);
}

/* vLLM had no groups when events were arrays: there, blocks of windows are told as others. */
static void put_stored(struct batch *b)
{
	int32_t window = b->window[b->group];

	begin(b, "BlockStored", b->arrays ? 7 : window ? 10 : 9);
	put_names(b);
	key(b, "parent_block_hash");
	if (b->parent)
		put_uint(&b->events, b->parent);
	else
		put_nil(&b->events);
	key(b, "token_ids");
	put_array(&b->events, b->n_names * b->block_tokens);
	for (uint32_t i = 0; i < b->n_names * b->block_tokens; i++)
		put_uint(&b->events, (uint32_t)b->ids[i]);
	key(b, "block_size");
	put_uint(&b->events, b->block_tokens);
	key(b, "lora_id");
	put_nil(&b->events);
	key(b, "medium");
	put_text(&b->events, b->host ? "CPU" : "GPU");
	key(b, "lora_name");
	put_nil(&b->events);
	if (b->arrays)
		return;
	key(b, "group_idx");
	put_uint(&b->events, (uint64_t)b->group);
	key(b, "kv_cache_spec_kind");
	put_text(&b->events, window ? "sliding_window" : "full_attention");
	if (window) {
		key(b, "kv_cache_spec_sliding_window");
		put_uint(&b->events, (uint64_t)window);
	}
}

static void put_removed(struct batch *b)
{
	begin(b, "BlockRemoved", b->arrays ? 2 : 3);
	put_names(b);
	key(b, "medium");
	put_text(&b->events, b->host ? "CPU" : "GPU");
	if (b->arrays)
		return;
	key(b, "group_idx");
	put_uint(&b->events, (uint64_t)b->group);
}

static void end_event(struct batch *b)
{
	if (b->open == BATCH_STORED)
		put_stored(b);
	else if (b->open == BATCH_REMOVED)
		put_removed(b);
	b->open = BATCH_NOTHING;
	b->n_names = 0;
}

static bool continues(const struct batch *b, int kind, int32_t group, bool host)
{
	return (int)b->open == kind && b->group == group && b->host == host && b->n_names < BATCH_BLOCKS;
}

void batch_stored(struct batch *b, const struct mirror_block *block)
{
	if (!continues(b, BATCH_STORED, block->group, block->host) || b->name[b->n_names - 1] != block->parent) {
		end_event(b);
		b->open = BATCH_STORED;
		b->group = block->group >= 0 && block->group < EVENTS_GROUPS ? block->group : 0;
		b->host = block->host;
		b->parent = block->parent;
	}
	memcpy(b->ids + (size_t)b->n_names * b->block_tokens, block->ids, b->block_tokens * sizeof(*b->ids));
	b->name[b->n_names++] = block->name;
}

void batch_removed(struct batch *b, uint64_t name, int32_t group, bool host)
{
	if (!continues(b, BATCH_REMOVED, group, host)) {
		end_event(b);
		b->open = BATCH_REMOVED;
		b->group = group;
		b->host = host;
	}
	b->name[b->n_names++] = name;
}

void batch_cleared(struct batch *b)
{
	end_event(b);
	begin(b, "AllBlocksCleared", 0);
}

bool batch_full(const struct batch *b)
{
	return b->n_events >= BATCH_EVENTS || b->events.n >= BATCH_BYTES;
}

const unsigned char *batch_take(struct batch *b, double seconds, size_t *n, bool *failed)
{
	struct packed *w = &b->whole;
	unsigned char *to;

	end_event(b);
	w->n = 0;
	put_array(w, 3);
	put_double(w, seconds);
	put_array(w, b->n_events);
	to = room(w, b->events.n);
	if (to && b->events.n)
		memcpy(to, b->events.at, b->events.n);
	put_uint(w, b->rank);
	*n = w->n;
	*failed = w->failed || b->events.failed;
	to = b->n_events && !*failed ? w->at : NULL;
	b->n_events = 0;
	b->events.n = 0;
	b->events.failed = w->failed = false;
	return to;
}

void batch_free(struct batch *b)
{
	free(b->events.at);
	free(b->whole.at);
	b->events = b->whole = (struct packed){ 0 };
}
