/* gguf_write.h - a minimal GGUF writer for tests.  It can write wrong files, too. */
#ifndef GGUF_WRITE_H
#define GGUF_WRITE_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

struct bytes { uint8_t b[1 << 20]; size_t n; };

static inline void put(struct bytes *w, const void *p, size_t n)
{
	assert(w->n + n <= sizeof(w->b));
	memcpy(w->b + w->n, p, n);
	w->n += n;
}
static inline void put_u32(struct bytes *w, uint32_t v) { put(w, &v, 4); }
static inline void put_u64(struct bytes *w, uint64_t v) { put(w, &v, 8); }
static inline void put_str(struct bytes *w, const char *s) { put_u64(w, strlen(s)); put(w, s, strlen(s)); }

static inline void put_head(struct bytes *w, uint32_t version, uint64_t n_tensors, uint64_t n_values)
{
	w->n = 0;
	put(w, "GGUF", 4);
	put_u32(w, version);
	put_u64(w, n_tensors);
	put_u64(w, n_values);
}
static inline void put_key(struct bytes *w, const char *key, uint32_t type) { put_str(w, key); put_u32(w, type); }
static inline void put_kv_u32(struct bytes *w, const char *key, uint32_t v) { put_key(w, key, 4); put_u32(w, v); }
static inline void put_kv_f32(struct bytes *w, const char *key, float v) { put_key(w, key, 6); put(w, &v, 4); }
static inline void put_kv_str(struct bytes *w, const char *key, const char *v) { put_key(w, key, 8); put_str(w, v); }

static inline void put_tensor(struct bytes *w, const char *name, uint32_t n_dims, uint64_t d0, uint64_t d1,
                              uint32_t type, uint64_t offset)
{
	put_str(w, name);
	put_u32(w, n_dims);
	for (uint32_t i = 0; i < n_dims; i++)
		put_u64(w, i == 0 ? d0 : i == 1 ? d1 : 1);
	put_u32(w, type);
	put_u64(w, offset);
}
static inline void put_pad(struct bytes *w, size_t alignment)
{
	while (w->n % alignment)
		put(w, "", 1);
}
static inline void put_zeros(struct bytes *w, size_t n)
{
	while (n--)
		put(w, "", 1);
}

#endif
