// SPDX-License-Identifier: GPL-2.0-or-later
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "size.h"

/*
 * Parses the plain decimal number at the start of @text; strtod() alone also accepts
 * "inf", "nan", hexadecimal and leading blanks.
 */
static int number(const char *text, double *value, const char **rest)
{
	char *end;

	if (!isdigit((unsigned char)*text) ||
	    (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')))
		return -EINVAL;
	*value = strtod(text, &end);
	*rest = end;
	return isfinite(*value) ? 0 : -ERANGE;
}

int size_parse(const char *text, const char *what, uint64_t *bytes, struct error *e)
{
	static const char units[] = "KMGTP";
	const char *rest, *unit;
	double value;
	int r = number(text, &value, &rest);

	if (r == 0 && *rest) {
		unit = strchr(units, toupper((unsigned char)*rest));
		if (unit) {
			value = ldexp(value, 10 * (int)(unit - units + 1));
			rest++;
		}
		if (*rest && strcasecmp(rest, "B") && (!unit || strcasecmp(rest, "iB")))
			r = -EINVAL;
	}
	if (r == -EINVAL)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "%s: '%s' is not a size; give a number with K, M, G or T, such as 256M",
				 what, text);
	if (r || value >= 0x1p63)
		return fail_exit(e, EXIT_USAGE, ERANGE, "%s: '%s' is too large; the limit is 8388607T",
				 what, text);
	*bytes = (uint64_t)value;
	return 0;
}

int percent_parse(const char *text, const char *what, uint32_t max, uint32_t *tenths,
		  struct error *e)
{
	const char *rest = text;
	double value = 0;
	int r = strcmp(text, "off") ? number(text, &value, &rest) : 0;

	if (!strcmp(text, "off"))
		rest = "";
	/* The controller is not exact beyond one decimal. */
	if (r == -EINVAL || (*rest && strcmp(rest, "%")) ||
	    (strchr(text, '.') && strcspn(strchr(text, '.') + 1, "%") > 1) || strpbrk(text, "eE"))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "%s: '%.64s' is not a percentage; give a number with at most one decimal, such as 2%% or 0.5%%, or off",
				 what, text);
	if (r || value * 10 > max)
		return fail_exit(e, EXIT_USAGE, ERANGE, "%s: '%.64s' is out of range; give 0 to %u%%", what, text,
				 max / 10);
	*tenths = (uint32_t)(value * 10 + 0.5);
	return 0;
}

int duration_parse(const char *text, const char *what, uint64_t *ns, struct error *e)
{
	static const struct { const char *unit; double ns; } units[] = {
		{ "", 1e9 }, { "s", 1e9 }, { "ms", 1e6 }, { "us", 1e3 },
		{ "m", 60e9 }, { "min", 60e9 }, { "h", 3600e9 },
	};
	const char *rest;
	double value;

	if (number(text, &value, &rest) == 0)
		for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
			if (!strcmp(rest, units[i].unit) && value * units[i].ns < 0x1p63) {
				*ns = (uint64_t)(value * units[i].ns);
				return 0;
			}
	return fail_exit(e, EXIT_USAGE, EINVAL,
			 "%s: '%s' is not a duration; give a number with us, ms, s, m or h, such as 500ms",
			 what, text);
}

int durations_parse(const char *text, const char *what, uint64_t *ns, uint32_t *n,
		    struct error *e)
{
	const char *rest = text;
	uint32_t most = *n;
	char word[32];
	int r = 0;

	*n = 0;
	do {
		size_t len = strcspn(rest, ",");

		snprintf(word, sizeof(word), "%.*s", (int)len, rest);
		rest += len;
		r = *n < most ? duration_parse(word, what, &ns[*n], e) : -ERANGE;
		if (!r && (!ns[*n] || (*n && ns[*n] <= ns[*n - 1])))
			r = -ERANGE;
		++*n;
	} while (!r && *rest++ == ',');
	return r ? fail_exit(e, EXIT_USAGE, EINVAL,
			     "%s: '%.64s': give at most %u durations, the shortest first, such as 1m,5m,30m",
			     what, text, most) : 0;
}

const char *placement_name(enum placement placement)
{
	static const char *const names[PLACEMENTS] = {
		[PLACEMENT_OFF] = "off", [PLACEMENT_TOGETHER] = "together",
		[PLACEMENT_AUTO] = "auto",
	};

	return names[placement];
}

int placement_parse(const char *text, const char *what, uint64_t *placement, struct error *e)
{
	for (int i = 0; i < PLACEMENTS; i++)
		if (!strcmp(text, placement_name(i))) {
			*placement = (uint64_t)i;
			return 0;
		}
	return fail_exit(e, EXIT_USAGE, EINVAL, "%s: '%.64s' is not auto, together or off", what, text);
}

int switch_parse(const char *text, const char *what, uint64_t *on, struct error *e)
{
	*on = !strcmp(text, "on");
	return *on || !strcmp(text, "off") ? 0 :
	       fail_exit(e, EXIT_USAGE, EINVAL, "%s: '%.64s' is not on or off", what, text);
}

int shares_parse(const char *text, const char *what, uint64_t *share, uint32_t *n,
		 struct error *e)
{
	const uint32_t most = *n;
	const char *at = text;
	char *end;

	*n = 0;
	do {
		unsigned long v = strtoul(at, &end, 10);

		if (end == at || (*end && *end != ',') || !v || v > SHARES_PERCENT_MAX ||
		    *n == most)
			return fail_exit(e, EXIT_USAGE, EINVAL,
					 "%s: '%.64s' is not a list of at most %u percentages; give one such as 100,75,50,25",
					 what, text, most);
		share[(*n)++] = v;
		at = end + 1;
	} while (*end);
	return 0;
}

char *size_format(uint64_t bytes, char *buf, int len)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
	double v = (double)bytes;
	size_t u = 0;

	while (v >= 1024 && u + 1 < sizeof(units) / sizeof(units[0])) {
		v /= 1024;
		u++;
	}
	snprintf(buf, len, u && v < 100 ? "%.1f %s" : "%.0f %s", v, units[u]);
	return buf;
}

char *duration_format(uint64_t ns, char *buf, int len)
{
	if (ns < 1000)
		snprintf(buf, len, "%u ns", (unsigned)ns);
	else if (ns < 1000000)
		snprintf(buf, len, "%.1f us", ns / 1e3);
	else if (ns < 1000000000)
		snprintf(buf, len, "%.1f ms", ns / 1e6);
	else
		snprintf(buf, len, "%.1f s", ns / 1e9);
	return buf;
}
