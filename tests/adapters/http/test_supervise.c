/* LINK: @http */
/* test_supervise.c - the parent of several adapter processes: one that hangs is replaced, once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

int adapter_main(int argc, char **argv);
#define main adapter_main
#define process_run waits_for_its_end
#include "adapters/http/main.c"
#undef main
#undef process_run

int waits_for_its_end(const struct process_config *pc)
{
	(void)pc;
	for (;;)
		pause();
}

static struct parent p;
static sigset_t none;

static void begin(void)
{
	p = (struct parent){ .at = { .n = 1, .fd = { dup(2) } }, .announced = true };
	p.beat = mmap(NULL, sizeof(*p.beat), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(p.beat != MAP_FAILED);
	sigemptyset(&none);
	start_child(&p, 0, &none);
	assert_true(p.pid[0] > 0);
}

static void end(void)
{
	if (p.pid[0]) {
		kill(p.pid[0], SIGKILL);
		waitpid(p.pid[0], NULL, 0);
	}
	munmap(p.beat, sizeof(*p.beat));
	close(p.at.fd[0]);
}

/* Wait until the parent has seen a child end, two seconds at most. */
static bool reaped(int ms)
{
	const struct timespec moment = { 0, 1000000 };
	pid_t was = p.pid[0];

	for (int i = 0; i < ms && p.pid[0] == was; i++) {
		nanosleep(&moment, NULL);
		reap(&p);
	}
	return !p.pid[0];
}

static void who_turns_is_left_alone(void **state)
{
	(void)state;
	begin();
	look_after(&p, &none);
	assert_false(reaped(30));
	end();
}

static void who_hangs_is_replaced_once(void **state)
{
	pid_t first;

	(void)state;
	begin();
	first = p.pid[0];
	for (int k = 0; k < YOUNG_MAX + 1; k++) {
		p.born[0] -= 60 * SECOND;      /* it ran well for a minute, then hung */
		atomic_store(&p.beat[0].alive_ns, io_now() - HUNG_NS - SECOND);
		look_after(&p, &none);
		assert_true(reaped(2000));
		look_after(&p, &none);         /* starts the next one without delay */
		assert_true(p.pid[0] > 0 && p.pid[0] != first);
		assert_false(reaped(30));
		look_after(&p, &none);
		assert_false(reaped(30));
		assert_int_equal(p.young, 0);
		assert_false(p.failed);
	}
	end();
}

/* A child that keeps dying soon after its start is given up. */
static void who_dies_young_counts(void **state)
{
	(void)state;
	begin();
	for (int k = 1; k <= YOUNG_MAX; k++) {
		assert_true(p.pid[0] > 0);
		kill(p.pid[0], SIGKILL);
		assert_true(reaped(2000));
		assert_int_equal(p.young, k);
		p.born[0] -= 2 * SECOND;       /* after the second one a second passes before the next */
		if (k < YOUNG_MAX)
			look_after(&p, &none);
	}
	assert_true(p.failed && p.stopping);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_turns_is_left_alone), cmocka_unit_test(who_hangs_is_replaced_once),
		cmocka_unit_test(who_dies_young_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
