// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>

#include "completion.h"

/* What completes a word of an option's value or of the arguments. */
static const struct {
	const char *word, *function;
} sources[] = {
	{ "CGROUP", "_ebb_cgroups" },
	{ "POLICY", "_ebb_policies" },
	{ "NAME", "_ebb_devices" },
	{ "DONOR", "_ebb_donors" },
	{ "FILE", "_ebb_files" },
	{ "DIR", "_ebb_dirs" },
	{ "PROGRAM", "_ebb_commands" },
};

static const char *const functions =
	"_ebb_words() { COMPREPLY+=($(compgen -W \"$1\" -- \"$cur\")); }\n"
	"_ebb_files() { compopt -o filenames; COMPREPLY+=($(compgen -f -- \"$cur\")); }\n"
	"_ebb_dirs() { compopt -o filenames; COMPREPLY+=($(compgen -d -- \"$cur\")); }\n"
	"_ebb_commands() { COMPREPLY+=($(compgen -c -- \"$cur\")); }\n"
	"_ebb_devices() { _ebb_words \"$(ebbctl device list --json 2>/dev/null |\n"
	"\tsed -n 's/^      \"name\": *\"\\(.*\\)\".*/\\1/p')\"; }\n"
	"_ebb_donors() { _ebb_words \"$(ebbctl donor list 2>/dev/null |\n"
	"\tsed -n 's/^\\([^ ]*:[^ ]*\\)  .*/\\1/p')\"; }\n"
	"_ebb_policies() { _ebb_words \"$(ebbctl policy list 2>/dev/null |\n"
	"\tsed -n 's/^\\([a-z0-9_-]*\\)  .*/\\1/p')\"; }\n"
	"_ebb_cgroups() {\n"
	"\tlocal root=/sys/fs/cgroup\n"
	"\t[ -d $root/memory ] && root=$root/memory\n"
	"\t[ -n \"$cur\" ] || cur=$root/\n"
	"\t_ebb_dirs\n"
	"}\n";

static const char *source_of(const char *text, size_t len)
{
	for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
		if (strlen(sources[i].word) == len && !strncmp(sources[i].word, text, len))
			return sources[i].function;
	return NULL;
}

static void print_words(const struct command *const *commands, const char *object, FILE *out)
{
	const char *last = "";

	for (; *commands; commands++) {
		const struct command *c = *commands;

		if (object ? !strcmp(c->object, object) && c->action : strcmp(c->object, last) != 0)
			fprintf(out, "%s ", object ? c->action : c->object);
		last = c->object;
	}
}

/* Cases of "previous word" for the options that take a value. */
static void print_values(const struct command *c, FILE *out)
{
	for (const struct option_spec *s = c->options; s && s->name; s++) {
		const char *function;

		if (s->type == OPTION_FLAG)
			continue;
		fprintf(out, "\t\t--%s", s->name);
		if (s->letter)
			fprintf(out, "|-%c", s->letter);
		fprintf(out, ") ");
		function = s->metavar ? source_of(s->metavar, strlen(s->metavar)) : NULL;
		if (function && strcmp(function, "_ebb_devices"))
			fprintf(out, "%s; ", function);
		else if (s->metavar && strchr(s->metavar, '|')) {
			fprintf(out, "_ebb_words \"");
			for (const char *p = s->metavar; *p; p++)
				fputc(*p == '|' ? ' ' : *p, out);
			fprintf(out, "\"; ");
		}
		fprintf(out, "return ;;\n");
	}
}

/* The first letters of a word of "POLICY [CGROUP] [KEY=NUMBER...]". */
static size_t word_length(const char *p)
{
	return strspn(p, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
}

static void print_arguments(const struct command *c, FILE *out)
{
	const char *p = c->arguments ?: "";
	int position = 0;

	for (; *p; p++) {
		const char *function;
		size_t len;

		p += *p == '[';
		len = word_length(p);
		function = source_of(p, len);
		if (len && function)
			fprintf(out, "\t\t[ $nth -eq %d ] && %s\n", position, function);
		while (len && p[len] == '|') { /* "POLICY|CGROUP": either */
			p += len + 1;
			len = word_length(p);
			function = source_of(p, len);
			if (function)
				fprintf(out, "\t\t[ $nth -eq %d ] && %s\n", position, function);
		}
		if (!len && strchr("abcdefghijklmnopqrstuvwxyz", *p)) {
			len = strspn(p, "abcdefghijklmnopqrstuvwxyz");
			fprintf(out, "\t\t[ $nth -eq %d ] && _ebb_words \"%.*s\"\n", position,
				(int)len, p);
		}
		position += len != 0;
		p += len;
		p += strcspn(p, " ");
		if (!*p)
			break;
	}
}

static void print_command(const char *program, const struct command *c, FILE *out)
{
	fprintf(out, "\t'%s%s%s')\n\t\tcase $prev in\n", c->object, c->action ? " " : "",
		c->action ?: "");
	print_values(c, out);
	fprintf(out, "\t\tesac\n\t\t[[ $cur == -* ]] && { _ebb_words \"--help");
	for (const struct option_spec *s = c->options; s && s->name; s++)
		fprintf(out, " --%s", s->name);
	fprintf(out, "\"; return; }\n");
	print_arguments(c, out);
	fprintf(out, "\t\t;;\n");
}

void completion_bash(const char *program, const struct command *const *commands, FILE *out)
{
	const char *last = "";

	fprintf(out, "# bash completion of %s; printed by `%s completion bash`\n%s", program, program,
		functions);
	fprintf(out, "_%s() {\n\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
		     "\tlocal words=\"${COMP_WORDS[1]}\" first=2 nth i\n\tCOMPREPLY=()\n"
		     "\tif [ $COMP_CWORD -eq 1 ]; then\n\t\t_ebb_words \"", program);
	print_words(commands, NULL, out);
	fprintf(out, "\"\n\t\treturn\n\tfi\n\tcase $words in\n");
	for (const struct command *const *c = commands; *c; c++) {
		if (!(*c)->action || !strcmp((*c)->object, last))
			continue;
		last = (*c)->object;
		fprintf(out, "\t%s)\n\t\tif [ $COMP_CWORD -eq 2 ]; then\n\t\t\t_ebb_words \"", last);
		print_words(commands, last, out);
		fprintf(out, "\"\n\t\t\treturn\n\t\tfi\n\t\twords=\"$words ${COMP_WORDS[2]}\" first=3 ;;\n");
	}
	fprintf(out, "\tesac\n\tnth=0\n\tfor ((i = first; i < COMP_CWORD; i++)); do\n"
		     "\t\t[[ ${COMP_WORDS[i]} == -* ]] || ((nth++))\n\tdone\n\tcase $words in\n");
	for (const struct command *const *c = commands; *c; c++)
		print_command(program, *c, out);
	fprintf(out, "\tesac\n}\ncomplete -F _%s %s\n", program, program);
}
