// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdio.h>

#include "device_servers.h"
#include "lib/base/paths.h"
#include "lib/control/control.h"
#include "lib/control/device.h"

#define SERVER_MS 5000

struct json_object *server_request(const char *verb)
{
	struct json_object *o = json_object_new_object();

	json_add_text(o, "verb", verb);
	return o;
}

int server_call(const char *device, struct json_object *request, struct json_object **answer,
		struct error *e)
{
	struct error inner = { 0 };
	int r = control_call(ebb_device_socket(device), request, SERVER_MS, answer, &inner);

	json_object_put(request);
	if (r)
		return fail_exit(e, inner.exit_status, r, "device %s: %s", device, inner.text);
	json_object_object_del(*answer, "ok");
	return 0;
}

int server_tell(const char *device, struct json_object *request, struct error *e)
{
	struct json_object *answer;
	int r = server_call(device, request, &answer, e);

	if (!r)
		json_object_put(answer);
	return r;
}

struct asking {
	const char *verb;
	int (*each)(const char *device, struct json_object *answer, void *data);
	void *data;
};

static int ask_one(const struct device_record *d, void *data)
{
	struct asking *a = data;
	struct json_object *answer;
	struct error e = { 0 };
	int r = server_call(d->name, server_request(a->verb), &answer, &e);

	if (r) {
		fprintf(stderr, "ebbctl: %s\n", e.text);
		return 0;
	}
	r = a->each(d->name, answer, a->data);
	json_object_put(answer);
	return r;
}

int servers_ask(const char *verb, int (*each)(const char *device, struct json_object *answer,
					      void *data),
		void *data)
{
	struct asking a = { verb, each, data };

	return device_record_each(ask_one, &a);
}
