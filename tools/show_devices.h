/* show_devices.h - how many devices of one size a model needs, and what more of them would bring. */
#ifndef SHOW_DEVICES_H
#define SHOW_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "core/instance/config.h"
#include "core/models/model.h"
#include "kernels/backend.h"

#define SHOW_DEVICES 6             /* lines at most: the fewest, and doublings of it up to 16 */

struct show_devices {
	int64_t memory;                /* bytes of each device; 0: not known, and nothing is said */
	int32_t fewest;                /* 0: 16 do not hold it */
	char    why_not[256];          /* what the plan says of one device less */
	int     n;
	struct { int32_t devices; int64_t weights, kv_tokens; double seqs; } line[SHOW_DEVICES];
	int32_t context;               /* tokens of a sequence of full length */
};

/* Bytes of "24", in GiB, or "24G", "500M"; or of the smallest GPU here where text is NULL (0: there is none).
 * -EINVAL: not a size. */
int64_t show_device_memory(const char *text);

/* Plans for 1 .. 16 devices with d->memory each, as serve would. */
void show_devices_plan(struct show_devices *d, const struct config *cfg, const struct model *m,
                       const struct sr_backend_ops *ops);

void    show_devices_text(const struct show_devices *d);
json_t *show_devices_json(const struct show_devices *d);   /* null: the memory is not known */

#endif
