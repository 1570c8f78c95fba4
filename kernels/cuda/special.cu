/* special.cu - see special.cuh. */
#include "special.cuh"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kernels/refuse.h"

static const char *const names[N_SPECIAL] = {
	"early_start", "graphs", "lt", "hopper_many", "hopper_attend", "w8a8", "dense_few", "packed_few", "pieces",
	"attend_one",
};

const char *special_name(int which)
{
	return names[which];
}

static int unknown(const char *name, int length, char *err, size_t errlen)
{
	char all[256] = "";
	size_t n = 0;

	for (int i = 0; i < N_SPECIAL; i++)
		n += (size_t)snprintf(all + n, sizeof(all) - n, "%s%s", i ? ", " : "", names[i]);
	return refuse(-EINVAL, err, errlen, "SLIPRING_CUDA_WITHOUT: \"%.*s\" is none of %s", length, name, all);
}

int special_parse(uint32_t *without, const char *list, char *err, size_t errlen)
{
	*without = 0;
	for (const char *at = list; at && *at;) {
		int length = (int)strcspn(at, ","), i = 0;

		while (i < N_SPECIAL && (strlen(names[i]) != (size_t)length || memcmp(names[i], at, (size_t)length)))
			i++;
		if (i == N_SPECIAL)
			return unknown(at, length < 60 ? length : 60, err, errlen);
		*without |= 1u << i;
		at += length;
		at += *at == ',';
	}
	return 0;
}
