// SPDX-License-Identifier: GPL-2.0-or-later
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device.h"
#include "lib/base/files.h"
#include "lib/base/json.h"
#include "lib/base/paths.h"

enum field_type { TEXT, U32, U64, INT, NEW_TEXT /* empty in older records */ };

/* The members of a record, in the order of the file. */
static const struct {
	const char *key;
	enum field_type type;
	size_t offset, size;
} fields[] = {
#define FIELD(name, type) { #name, type, offsetof(struct device_record, name), \
			    sizeof(((struct device_record *)0)->name) }
	FIELD(name, TEXT),
	FIELD(frontend, TEXT),
	FIELD(block, TEXT),
	FIELD(major, U32),
	FIELD(minor, U32),
	FIELD(size, U64),
	FIELD(slab, U64),
	FIELD(priority, INT),
	FIELD(server_pid, INT),
	FIELD(donor, TEXT),
	FIELD(backup, TEXT),
	FIELD(mount, TEXT),
	FIELD(scope, TEXT),
	FIELD(donors_from, NEW_TEXT),
	FIELD(durability, NEW_TEXT),
	FIELD(key, NEW_TEXT),
	FIELD(seal, NEW_TEXT),
	FIELD(connections, NEW_TEXT),
	FIELD(overcommit, NEW_TEXT),
#undef FIELD
};

#define FIELDS (sizeof(fields) / sizeof(fields[0]))

static bool is_text(size_t i)
{
	return fields[i].type == TEXT || fields[i].type == NEW_TEXT;
}

static bool name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

int device_name_check(const char *name, struct error *e)
{
	size_t len = strlen(name), i;

	for (i = 0; i < len; i++)
		if (!name_char(name[i]) && (!i || (name[i] != '_' && name[i] != '-')))
			break;
	if (len && len < DEVICE_NAME_MAX && i == len)
		return 0;
	return fail_exit(e, EXIT_USAGE, EINVAL,
			 "device '%.64s': invalid name; use at most %d characters, a-z, 0-9, _ and -, the first a letter or digit",
			 name, DEVICE_NAME_MAX - 1);
}

struct json_object *device_record_json(const struct device_record *d)
{
	struct json_object *o = json_object_new_object();

	for (size_t i = 0; i < FIELDS; i++) {
		const void *p = (const char *)d + fields[i].offset;

		json_object_object_add(o, fields[i].key,
			is_text(i) ? json_object_new_string(p) :
			fields[i].type == U64 ? json_object_new_int64(*(const int64_t *)p) :
			fields[i].type == U32 ? json_object_new_int64(*(const uint32_t *)p) :
						json_object_new_int(*(const int *)p));
	}
	return o;
}

int device_record_write(const struct device_record *d, struct error *e)
{
	_cleanup_json_ struct json_object *o = NULL;
	const char *path = ebb_device_record(d->name);
	int r;

	r = file_make_dirs(ebb_device_dir(), 0755);
	if (r)
		return fail(e, r, "%s: cannot create: %s", ebb_device_dir(), strerror(-r));
	o = device_record_json(d);
	/* Users of group ebb read it (peer.h). */
	r = file_publish(path, json_object_to_json_string_ext(o, JSON_C_TO_STRING_PRETTY));
	return r ? fail(e, r, "device %s: cannot write %s: %s", d->name, path, strerror(-r)) : 0;
}

static int read_field(struct json_object *o, size_t i, struct device_record *d)
{
	void *p = (char *)d + fields[i].offset;
	struct json_object *v;
	int64_t n;

	if (!json_object_object_get_ex(o, fields[i].key, &v))
		return fields[i].type == NEW_TEXT ? 0 : -EBADMSG;
	if (!json_object_is_type(v, is_text(i) ? json_type_string : json_type_int))
		return -EBADMSG;
	if (is_text(i)) {
		const char *text = json_object_get_string(v);

		if (strlen(text) >= fields[i].size)
			return -EBADMSG;
		strcpy(p, text);
		return 0;
	}
	n = json_object_get_int64(v);
	if (fields[i].type == U64)
		*(uint64_t *)p = n;
	else if (fields[i].type == U32)
		*(uint32_t *)p = n;
	else
		*(int *)p = n;
	return 0;
}

int device_record_read(const char *name, struct device_record *d, struct error *e)
{
	_cleanup_json_ struct json_object *o = NULL;
	struct device_record new = { 0 };
	char text[4 * PATH_MAX];
	const char *path;
	ssize_t n;
	int r;

	r = device_name_check(name, e);
	if (r)
		return r;
	path = ebb_device_record(name);
	n = file_read(path, text, sizeof(text));
	if (n == -ENOENT)
		return fail_exit(e, EXIT_USAGE, ENOENT,
				 "device %s: no such device; see \"ebbctl device list\"", name);
	if (n < 0)
		return fail(e, n, "device %s: cannot read %s: %s", name, path, strerror(-n));
	o = json_tokener_parse(text);
	r = o ? 0 : -EBADMSG;
	for (size_t i = 0; !r && i < FIELDS; i++) {
		r = read_field(o, i, &new);
		if (r)
			fail(e, r, "device %s: %s: bad or missing member \"%s\"; destroy and re-create the device",
			     name, path, fields[i].key);
	}
	if (!r && strcmp(new.name, name))
		r = fail(e, EBADMSG, "device %s: %s is the record of %s; destroy both", name, path,
			 new.name);
	if (r)
		return fail(e, r, "device %s: %s is not a device record; destroy and re-create the device",
			    name, path);
	*d = new;
	return 0;
}

int device_record_remove(const char *name)
{
	return unlink(ebb_device_record(name)) < 0 && errno != ENOENT ? -errno : 0;
}

static int is_record(const struct dirent *entry)
{
	size_t len = strlen(entry->d_name);

	return len > 5 && len < DEVICE_NAME_MAX + 5 && !strcmp(entry->d_name + len - 5, ".json");
}

int device_record_each(int (*each)(const struct device_record *d, void *data), void *data)
{
	struct dirent **entries;
	int n = scandir(ebb_device_dir(), &entries, is_record, alphasort), r = 0;

	for (int i = 0; i < n; i++) {
		struct device_record d;

		entries[i]->d_name[strlen(entries[i]->d_name) - 5] = '\0';
		if (!r && !device_record_read(entries[i]->d_name, &d, NULL))
			r = each(&d, data);
		free(entries[i]);
	}
	if (n >= 0)
		free(entries);
	return r;
}
