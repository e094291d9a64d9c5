// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>

#include "completion.h"

static const char *const functions =
	"_ebb_words() { COMPREPLY+=($(compgen -W \"$1\" -- \"$cur\")); }\n"
	"_ebb_files() { compopt -o filenames; COMPREPLY+=($(compgen -f -- \"$cur\")); }\n"
	"_ebb_dirs() { compopt -o filenames; COMPREPLY+=($(compgen -d -- \"$cur\")); }\n"
	"_ebb_commands() { COMPREPLY+=($(compgen -c -- \"$cur\")); }\n"
	"_ebb_devices() { _ebb_words \"$(" COMPLETION_DEVICES ")\"; }\n"
	"_ebb_donors() { _ebb_words \"$(" COMPLETION_DONORS ")\"; }\n"
	"_ebb_policies() { _ebb_words \"$(" COMPLETION_POLICIES ")\"; }\n"
	/* Number of the argument at the cursor: _ebb_nth FIRST [OPTION-WITH-VALUE...]. */
	"_ebb_nth() {\n"
	"\tlocal i\n"
	"\tnth=0\n"
	"\tfor ((i = $1; i < COMP_CWORD; i++)); do\n"
	"\t\tcase \" ${*:2} \" in\n"
	"\t\t*\" ${COMP_WORDS[i]} \"*)\n"
	"\t\t\t((i++))\n"
	"\t\t\t[[ ${COMP_WORDS[i]} == = ]] && ((i++))\n"
	"\t\t\tcontinue ;;\n"
	"\t\tesac\n"
	"\t\t[[ ${COMP_WORDS[i]} == -* ]] || ((nth++))\n"
	"\tdone\n"
	"}\n"
	"_ebb_cgroups() {\n"
	"\tlocal root=/sys/fs/cgroup\n"
	"\t[ -d $root/memory ] && root=$root/memory\n"
	"\t[ -n \"$cur\" ] || cur=$root/\n"
	"\t_ebb_dirs\n"
	"}\n";

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
		const char *function = completion_value_function(s);
		const char *choices = completion_value_choices(s);

		if (s->type == OPTION_FLAG)
			continue;
		fprintf(out, "\t\t--%s", s->name);
		if (s->letter)
			fprintf(out, "|-%c", s->letter);
		fprintf(out, ") ");
		if (function) {
			fprintf(out, "%s; ", function);
		} else if (choices) {
			fprintf(out, "_ebb_words \"");
			for (const char *p = choices; *p; p++)
				fputc(*p == '|' ? ' ' : *p, out);
			fprintf(out, "\"; ");
		}
		fprintf(out, "return ;;\n");
	}
}

static void print_arguments(const struct command *c, FILE *out)
{
	const char *at = c->arguments ?: "", *word;
	struct completion_argument a;
	size_t len;

	fprintf(out, "\t\t_ebb_nth $first");
	for (const struct option_spec *s = c->options; s && s->name; s++) {
		if (s->type == OPTION_FLAG)
			continue;
		fprintf(out, " --%s", s->name);
		if (s->letter)
			fprintf(out, " -%c", s->letter);
	}
	fprintf(out, "\n");
	for (int nth = 0; completion_argument_next(&at, &a); nth++)
		while (completion_choice_next(&a, &word, &len)) {
			const char *function = completion_function(word, len);

			if (function)
				fprintf(out, "\t\t[ $nth -eq %d ] && %s\n", nth, function);
			else if (completion_literal(word, len))
				fprintf(out, "\t\t[ $nth -eq %d ] && _ebb_words \"%.*s\"\n", nth,
					(int)len, word);
		}
}

static void print_command(const struct command *c, FILE *out)
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
		     "\tlocal words=\"${COMP_WORDS[1]}\" first=2 nth\n\tCOMPREPLY=()\n"
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
	fprintf(out, "\tesac\n\tcase $words in\n");
	for (const struct command *const *c = commands; *c; c++)
		print_command(*c, out);
	fprintf(out, "\tesac\n}\ncomplete -F _%s %s\n", program, program);
}
