// SPDX-License-Identifier: GPL-2.0-or-later
/* What ebbd shares, with an ebbd and a kernel that the test simulates. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>
#include "gc_test.h"
#include "share.h"

#define ANSWER "{\"ok\":true,\"map\":\"/epochs\",\"slot\":3,\"slots\":8}\n"

static int far_end;		/* of the control socket */
static pthread_t server;
static volatile sig_atomic_t signals;

int socket(int domain, int type, int protocol)
{
	int pair[2];

	assert_int_equal(socketpair(domain, type, protocol, pair), 0);
	far_end = pair[1];
	return pair[0];
}

/* Minutes instead, for a server that waits for a processor: recv() still ends at a signal. */
int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
	int (*real)(int, int, int, const void *, socklen_t) = dlsym(RTLD_NEXT, "setsockopt");
	const struct timeval minutes = { 300, 0 };

	assert_true(name == SO_RCVTIMEO || name == SO_SNDTIMEO);
	assert_int_equal(length, sizeof(minutes));
	assert_true(((const struct timeval *)value)->tv_usec > 0);
	return real(fd, level, name, &minutes, sizeof(minutes));
}

/* Slow. */
static void *answers(void *unused)
{
	char request[256];

	assert_true(read(far_end, request, sizeof(request)) > 0);
	usleep(50000);
	/* A client that has disconnected is no failure. */
	(void)!send(far_end, ANSWER, sizeof(ANSWER) - 1, MSG_NOSIGNAL);
	return NULL;
}

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	assert_int_equal(pthread_create(&server, NULL, answers, NULL), 0);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return 0;
}

/* The map of epochs: each is the number of its slot. */
long syscall(long number, ...)
{
	uint64_t epochs[512] = { 0 };
	int fd;

	if (number != SYS_bpf) {
		errno = ENOSYS;
		return -1;
	}
	for (uint64_t i = 0; i < 8; i++)
		epochs[i] = i;
	fd = memfd_create("epochs", MFD_CLOEXEC);
	assert_int_equal(write(fd, epochs, sizeof(epochs)), sizeof(epochs));
	return fd;
}

static void on_signal(int number)
{
	signals++;
}

/* A profiler's signals do not cost the program its epochs. */
static void signals_come(void **state)
{
	const struct itimerval often = { { 0, 5000 }, { 0, 5000 } }, never = { { 0, 0 }, { 0, 0 } };
	const struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	struct share s;

	assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
	share_open(&s);
	assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
	pthread_join(server, NULL);
	close(far_end);
	assert_true(signals > 0);
	assert_non_null(s.epoch);
	assert_int_equal(*s.epoch, 3);
	assert_null(s.arrivals);
	share_close(&s);
	assert_null(s.epoch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(signals_come),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
