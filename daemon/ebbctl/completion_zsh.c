// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>

#include "completion.h"

static const char *const functions =
	"_ebb_files() { _files }\n"
	"_ebb_dirs() { _files -/ }\n"
	"_ebb_commands() { _command_names -e }\n"
	"_ebb_devices() { compadd -- ${(f)\"$(" COMPLETION_DEVICES ")\"} }\n"
	"_ebb_donors() { compadd -- ${(f)\"$(" COMPLETION_DONORS ")\"} }\n"
	"_ebb_policies() { compadd -- ${(f)\"$(" COMPLETION_POLICIES ")\"} }\n"
	"_ebb_cgroups() {\n"
	"\tlocal root=/sys/fs/cgroup\n"
	"\t[[ -d $root/memory ]] && root=$root/memory\n"
	"\t_files -/ -W $root\n"
	"}\n";

/* Prints @text in single quotes, with a backslash before each of @special. */
static void print_quoted(const char *text, size_t len, const char *special, FILE *out)
{
	for (size_t i = 0; i < len; i++) {
		if (strchr(special, text[i]))
			fputc('\\', out);
		if (text[i] == '\'')
			fputs("'\\''", out);
		else
			fputc(text[i], out);
	}
}

static void print_text(const char *text, const char *special, FILE *out)
{
	print_quoted(text, strlen(text), special, out);
}

/* ":MESSAGE:ACTION" of an option's value. */
static void print_value(const struct option_spec *s, FILE *out)
{
	const char *choices = completion_value_choices(s);

	fputc(':', out);
	print_text(s->metavar ?: "VALUE", ":\\", out);
	fputc(':', out);
	if (!choices) {
		fputs(completion_value_function(s) ?: " ", out);
		return;
	}
	fputc('(', out);
	for (; *choices; choices++)
		fputc(*choices == '|' ? ' ' : *choices, out);
	fputc(')', out);
}

/* Prints one specification of _arguments; @name has its hyphens and excludes @other. */
static void print_option(const struct option_spec *s, const char *name, const char *other,
			 FILE *out)
{
	fprintf(out, " \\\n\t\t\t'");
	if (s->type == OPTION_LIST)
		fputc('*', out);
	else if (*other)
		fprintf(out, "(%s)", other);
	/* "-m+": value attached or as a word; "--mem=": value after "=" or as a word. */
	fprintf(out, "%s%s[", name, s->type == OPTION_FLAG ? "" : name[1] == '-' ? "=" : "+");
	print_text(s->help, "]\\", out);
	fputc(']', out);
	if (s->type != OPTION_FLAG)
		print_value(s, out);
	fputc('\'', out);
}

static void print_options(const struct command *c, FILE *out)
{
	for (const struct option_spec *s = c->options; s && s->name; s++) {
		const char letter[] = { s->letter ? '-' : '\0', s->letter, '\0' };
		char name[64];

		snprintf(name, sizeof(name), "--%s", s->name);
		print_option(s, name, letter, out);
		if (s->letter)
			print_option(s, letter, name, out);
	}
}

static void print_argument(struct completion_argument a, int nth, FILE *out)
{
	const char *word;
	size_t len;

	if (a.repeated)
		fprintf(out, " \\\n\t\t\t'*:");
	else
		fprintf(out, " \\\n\t\t\t'%d:%s", nth, a.optional ? ":" : "");
	print_quoted(a.text, a.len, ":\\", out);
	fprintf(out, ":{");
	while (completion_choice_next(&a, &word, &len)) {
		const char *function = completion_function(word, len);

		if (function)
			fprintf(out, "%s;", function);
		else if (completion_literal(word, len))
			fprintf(out, "compadd -- %.*s;", (int)len, word);
	}
	fprintf(out, "}'");
}

static void print_command(const struct command *c, FILE *out)
{
	const char *at = c->arguments ?: "";
	struct completion_argument a;

	fprintf(out, "\t'%s%s%s')\n\t\t_arguments -s -S '--help[show the options]'", c->object,
		c->action ? " " : "", c->action ?: "");
	print_options(c, out);
	if (!strncmp(at, "-- ", 3))
		/* A nested command line. */
		fprintf(out, " \\\n\t\t\t'(-)1:PROGRAM:_command_names -e' '*::ARG:_normal'");
	else
		for (int nth = 1; completion_argument_next(&at, &a); nth++)
			print_argument(a, nth, out);
	fprintf(out, " ;;\n");
}

/* Prints list=('OBJECT:HELP' ...) or, for one object, 'ACTION:HELP'. */
static void print_list(const struct command *const *commands, const char *object, FILE *out)
{
	const char *last = "";

	fprintf(out, "list=(");
	for (; *commands; commands++) {
		const struct command *c = *commands;

		if (object ? !strcmp(c->object, object) && c->action :
			     strcmp(c->object, last) != 0) {
			fprintf(out, "\n\t\t\t'%s:", object ? c->action : c->object);
			if (object || !c->action)
				print_text(c->help, "\\", out);
			else
				fprintf(out, "%s, ...", c->action);
			fputc('\'', out);
		}
		last = c->object;
	}
	fprintf(out, ")\n");
}

void completion_zsh(const char *program, const struct command *const *commands, FILE *out)
{
	const char *last = "";

	fprintf(out, "#compdef %s\n# zsh completion of %s; printed by `%s completion zsh`\n%s", program,
		program, program, functions);
	fprintf(out, "_%s() {\n\tlocal curcontext=$curcontext\n\tlocal -a list\n"
		     "\tif (( CURRENT == 2 )); then\n\t\t", program);
	print_list(commands, NULL, out);
	fprintf(out, "\t\t_describe -t commands command list\n\t\treturn\n\tfi\n\tcase $words[2] in\n");
	for (const struct command *const *c = commands; *c; c++) {
		if (!(*c)->action || !strcmp((*c)->object, last))
			continue;
		last = (*c)->object;
		fprintf(out, "\t%s)\n\t\tif (( CURRENT == 3 )); then\n\t\t", last);
		print_list(commands, last, out);
		fprintf(out, "\t\t\t_describe -t actions action list\n\t\t\treturn\n\t\tfi\n"
			     "\t\twords=(\"$words[2] $words[3]\" \"${(@)words[4,-1]}\")\n"
			     "\t\t(( CURRENT -= 2 )) ;;\n");
	}
	fprintf(out, "\t*)\n\t\tshift words\n\t\t(( CURRENT -= 1 )) ;;\n\tesac\n"
		     "\tcurcontext=\"${curcontext%%:*}-${words[1]// /-}:\"\n\tcase $words[1] in\n");
	for (const struct command *const *c = commands; *c; c++)
		print_command(*c, out);
	/* Works as a file in $fpath and by source <(...). */
	fprintf(out, "\tesac\n}\nif [ \"$funcstack[1]\" = _%s ]; then\n\t_%s \"$@\"\nelse\n"
		     "\tcompdef _%s %s\nfi\n", program, program, program, program);
}
