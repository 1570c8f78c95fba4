/* serve_at.c - see serve_at.h. */
#include "serve_at.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "serve.h"

static struct { int fd; char path[4200]; } held[SERVE_DAEMONS];
static int n_held;

/* Does a daemon run in this directory?  serve or not, it has the lock. */
static bool daemon_in(const char *dir)
{
	char path[4200];
	bool there;
	int fd;

	snprintf(path, sizeof(path), "%s/lock", dir);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return false;
	there = flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
	close(fd);
	return there;
}

/* Returns the locked descriptor, or -errno. */
static int take(const char *path)
{
	struct stat st;
	int fd, e;

	for (;;) {
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (fd < 0)
			return -errno;
		if (flock(fd, LOCK_EX | LOCK_NB) < 0 || fstat(fd, &st) < 0) {
			e = errno;
			close(fd);
			return -e;
		}
		if (st.st_nlink)
			return fd;
		close(fd);                    /* its last owner has just removed it */
	}
}

bool serve_hold(const struct config *cfg)
{
	const int before = n_held, n = config_replicas(cfg);
	char dir[4096], name[CONFIG_INSTANCE], err[512];
	struct config one;
	int fd;

	for (int i = 0; i < n && n_held < SERVE_DAEMONS; i++) {
		config_replica(cfg, i, &one, name);
		if (config_run_dir(one.instance, dir, sizeof(dir)) < 0 ||
		    config_make_run_dir(dir, err, sizeof(err)) < 0)
			continue;
		snprintf(held[n_held].path, sizeof(held->path), "%s/.serve", dir);
		fd = take(held[n_held].path);
		if (fd >= 0)
			held[n_held++].fd = fd;
		if (fd != -EWOULDBLOCK && !daemon_in(dir))
			continue;
		while (n_held > before)
			close(held[--n_held].fd);
		return false;
	}
	if (cfg->port && !cfg->uds)
		serve_say_port(cfg->port);
	return true;
}

void serve_say_port(int port)
{
	for (int i = 0; i < n_held; i++)
		if (ftruncate(held[i].fd, 0) == 0 && lseek(held[i].fd, 0, SEEK_SET) == 0)
			dprintf(held[i].fd, "%d\n", port);
}

void serve_let_go(void)
{
	for (int i = 0; i < n_held; i++)
		unlink(held[i].path);
}

/* Does a living serve, ours or root's, have this instance on the port? */
static bool serves(const char *instance, int port)
{
	char path[4200], dir[4096], text[16];
	struct stat st;
	ssize_t n;
	bool yes;
	int fd;

	if (config_find_run_dir(instance, dir, sizeof(dir)) < 0)
		return false;
	snprintf(path, sizeof(path), "%s/.serve", dir);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	text[n > 0 ? n : 0] = 0;
	yes = n > 0 && atoi(text) == port && fstat(fd, &st) == 0 && (st.st_uid == 0 || st.st_uid == geteuid()) &&
	      flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
	close(fd);
	return yes;
}

static void add_if_there(const char *instance, int port, char *names, size_t n, int *found)
{
	size_t len = strlen(names);

	if (serves(instance, port) && len < n)
		snprintf(names + len, n - len, "%s%s", (*found)++ ? ", " : "", instance);
}

/* Writes "a, b"; returns how many there are. */
static int search(int port, char *names, size_t n)
{
	char base[4096];
	struct dirent *e;
	int found = 0;
	DIR *d;

	*names = 0;
	if (config_find_run_dir("default", base, sizeof(base)) < 0)
		return 0;
	add_if_there("default", port, names, n, &found);
	d = opendir(base);
	while (d && (e = readdir(d)))
		if (e->d_name[0] != '.' && strcmp(e->d_name, "default") != 0)
			add_if_there(e->d_name, port, names, n, &found);
	if (d)
		closedir(d);
	return found;
}

const char *serve_on(const char *text, char *err, size_t errlen)
{
	static char names[SERVE_DAEMONS * CONFIG_INSTANCE];
	char *end;
	long port = strtol(text, &end, 10);
	int n;

	if (end == text || *end || port < 1 || port > 65535) {
		snprintf(err, errlen, "--port %.20s: not a port", text);
		return NULL;
	}
	n = search((int)port, names, sizeof(names));
	if (n > 1)
		snprintf(err, errlen, "--port %ld: its instances are %.300s; name one by --instance", port, names);
	else if (!n)
		snprintf(err, errlen, "--port %ld: no \"slipring serve\" of this user has that port; --instance "
		         "names any daemon", port);
	return n == 1 ? names : NULL;
}

const char *serve_found(const char *command, const char *text)
{
	char err[512];
	const char *name = serve_on(text, err, sizeof(err));

	if (!name)
		fprintf(stderr, "slipring %s: %s\n", command, err);
	return name;
}
