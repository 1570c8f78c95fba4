/* LINK: @config -lyaml */
/* fuzz_config.c - a configuration file of any bytes sets options or ends with an error sentence. */
#include <stdint.h>
#include <stdlib.h>

#include "core/instance/config.c"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static struct config c;
	char err[1024] = "";
	struct parsing y = { .c = &c, .who = FOR_SERVE, .err = err, .errlen = sizeof(err) };
	int rc;

	memset(&c, 0, sizeof(c));
	if (set_defaults(&y) != 0)
		abort();
	rc = read_yaml(&y, "f.yaml", p, n);
	if (rc == 0)
		rc = check_together(&y);
	if (rc != 0 && !err[0])
		abort();
	if (c.n_api_keys < 0 || c.n_api_keys > CONFIG_LIST || c.n_served_names > CONFIG_LIST)
		abort();
	config_free(&c);
	return 0;
}
