/* formats.c - a row for each format of calls and of thoughts.  Markers are exact.  The names are those of
 * vLLM's parsers.  In the order in which a template is searched for them.
 */
#include <stdio.h>
#include <string.h>

#include "impl.h"

#define SAME "name", .args_field = "arguments"

static const struct call_format format[] = {
	{ .name = { "qwen3_coder", "qwen3_xml", "mimo", "step3p5", "nemotron_v3" }, .style = CALL_TAGGED,
	  .seen = "<function=", .also = "<parameter=", .gap = "\n", .between = "\n", .lines = true,
	  .mark = { [M_SECTION] = "<tool_call>", [M_SECTION_END] = "</tool_call>", [M_CALL] = "<function=",
	            [M_NAME_END] = ">", [M_KEY] = "<parameter=", [M_KEY_END] = ">",
	  [M_VALUE_END] = "</parameter>",
	            [M_CALL_END] = "</function>" } },
	{ .name = { "seed_oss" }, .style = CALL_TAGGED, .seen = "<seed:tool_call>", .gap = "\n", .between = "\n",
	  .lines = true,
	  .mark = { [M_SECTION] = "<seed:tool_call>", [M_SECTION_END] = "</seed:tool_call>",
	            [M_CALL] = "<function=", [M_NAME_END] = ">", [M_KEY] = "<parameter=", [M_KEY_END] = ">",
	            [M_VALUE_END] = "</parameter>", [M_CALL_END] = "</function>" } },
	{ .name = { "glm45", "glm47" }, .style = CALL_TAGGED, .seen = "<arg_key>", .gap = "\n", .between = "\n",
	  .mark = { [M_CALL] = "<tool_call>", [M_KEY] = "<arg_key>", [M_KEY_END] = "</arg_key>",
	            [M_VALUE] = "<arg_value>", [M_VALUE_END] = "</arg_value>", [M_CALL_END] = "</tool_call>" } },
	{ .name = { "minimax_m2" }, .style = CALL_TAGGED, .seen = "<minimax:tool_call>", .gap = "\n",
	  .between = "\n",
	  .mark = { [M_SECTION] = "<minimax:tool_call>", [M_SECTION_END] = "</minimax:tool_call>",
	            [M_CALL] = "<invoke name=\"", [M_NAME_END] = "\">", [M_KEY] = "<parameter name=\"",
	            [M_KEY_END] = "\">", [M_VALUE_END] = "</parameter>", [M_CALL_END] = "</invoke>" } },
	{ .name = { "deepseek_v32" }, .style = CALL_TAGGED, .seen = "｜DSML｜", .also = "function_calls",
	  .gap = "\n", .between = "\n", .flagged = true,
	  .mark = { [M_SECTION] = "<｜DSML｜function_calls>", [M_SECTION_END] = "</｜DSML｜function_calls>",
	            [M_CALL] = "<｜DSML｜invoke name=\"", [M_NAME_END] = "\">",
	            [M_KEY] = "<｜DSML｜parameter name=\"", [M_KEY_END] = "\">",
	            [M_VALUE_END] = "</｜DSML｜parameter>", [M_CALL_END] = "</｜DSML｜invoke>" } },
	{ .name = { "deepseek_v4" }, .style = CALL_TAGGED, .seen = "｜DSML｜", .also = "tool_calls",
	  .gap = "\n", .between = "\n", .flagged = true,
	  .mark = { [M_SECTION] = "<｜DSML｜tool_calls>", [M_SECTION_END] = "</｜DSML｜tool_calls>",
	            [M_CALL] = "<｜DSML｜invoke name=\"", [M_NAME_END] = "\">",
	            [M_KEY] = "<｜DSML｜parameter name=\"", [M_KEY_END] = "\">",
	            [M_VALUE_END] = "</｜DSML｜parameter>", [M_CALL_END] = "</｜DSML｜invoke>" } },
	{ .name = { "step3" }, .style = CALL_TAGGED, .seen = "<steptml:invoke", .between = "",
	  .mark = { [M_SECTION] = "<｜tool_calls_begin｜>", [M_SECTION_END] = "<｜tool_calls_end｜>",
	            [M_CALL] = "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"",
	            [M_NAME_END] = "\">", [M_KEY] = "<steptml:parameter name=\"", [M_KEY_END] = "\">",
	            [M_VALUE_END] = "</steptml:parameter>",
	            [M_CALL_END] = "</steptml:invoke><｜tool_call_end｜>" } },
	{ .name = { "deepseek_v3" }, .style = CALL_NAMED, .seen = "<｜tool▁sep｜>", .also = "```json",
	  .tail = "\n```", .between = "\n",
	  .mark = { [M_SECTION] = "<｜tool▁calls▁begin｜>", [M_SECTION_END] = "<｜tool▁calls▁end｜>",
	            [M_CALL] = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", [M_NAME_END] = "\n```json\n",
	            [M_CALL_END] = "<｜tool▁call▁end｜>" } },
	{ .name = { "deepseek_v31" }, .style = CALL_NAMED, .seen = "<｜tool▁sep｜>", .between = "",
	  .mark = { [M_SECTION] = "<｜tool▁calls▁begin｜>", [M_SECTION_END] = "<｜tool▁calls▁end｜>",
	            [M_CALL] = "<｜tool▁call▁begin｜>", [M_NAME_END] = "<｜tool▁sep｜>",
	            [M_CALL_END] = "<｜tool▁call▁end｜>" } },
	{ .name = { "kimi_k2" }, .style = CALL_NAMED, .seen = "<|tool_call_argument_begin|>", .between = "",
	  .prefix = "functions.",
	  .mark = { [M_SECTION] = "<|tool_calls_section_begin|>", [M_SECTION_END] = "<|tool_calls_section_end|>",
	            [M_CALL] = "<|tool_call_begin|>", [M_NAME_END] = "<|tool_call_argument_begin|>",
	            [M_CALL_END] = "<|tool_call_end|>" } },
	{ .name = { "mistral" }, .style = CALL_NAMED, .seen = "[TOOL_CALLS]", .name_field = SAME, .list = true,
	  .between = "", .ids = CALLS_IDS_NINE,
	  .mark = { [M_CALL] = "[TOOL_CALLS]", [M_NAME_END] = "[ARGS]", [M_ID] = "[CALL_ID]" } },
	{ .name = { "openai", "gptoss" }, .style = CALL_HARMONY, .seen = "<|channel|>", .also = "<|message|>",
	  .mark = { [M_START] = "<|start|>", [M_END] = "<|end|>", [M_CHANNEL] = "<|channel|>",
	            [M_MESSAGE] = "<|message|>", [M_SENT] = "<|call|>", [M_RETURN] = "<|return|>",
	            [M_CONSTRAIN] = "<|constrain|>" } },
	{ .name = { "gemma4" }, .style = CALL_GEMMA, .seen = "<|tool_call>", .between = "",
	  .mark = { [M_CALL] = "<|tool_call>call:", [M_CALL_END] = "<tool_call|>", [M_QUOTE] = "<|\"|>" } },
	{ .name = { "functiongemma" }, .style = CALL_GEMMA, .seen = "<start_function_call>", .between = "",
	  .mark = { [M_CALL] = "<start_function_call>call:", [M_CALL_END] = "<end_function_call>",
	            [M_QUOTE] = "<escape>" } },
	{ .name = { "olmo3" }, .style = CALL_PYTHON, .seen = "<function_calls>", .between = "\n",
	  .mark = { [M_CALL] = "<function_calls>", [M_CALL_END] = "</function_calls>" } },
	{ .name = { "lfm2" }, .style = CALL_PYTHON, .seen = "<|tool_call_start|>", .list = true, .between = ", ",
	  .mark = { [M_CALL] = "<|tool_call_start|>", [M_CALL_END] = "<|tool_call_end|>" } },
	{ .name = { "llama4_pythonic" }, .style = CALL_PYTHON, .seen = "<|python_start|>", .list = true,
	  .bare = true, .between = ", ",
	  .mark = { [M_CALL] = "<|python_start|>", [M_CALL_END] = "<|python_end|>" } },
	{ .name = { "apertus" }, .style = CALL_OBJECT, .seen = "<|tools_prefix|>", .list = true, .name_field = "",
	  .between = ", ",
	  .mark = { [M_CALL] = "<|tools_prefix|>", [M_CALL_END] = "<|tools_suffix|>" } },
	{ .name = { "cohere_command3" }, .style = CALL_OBJECT, .seen = "<|START_ACTION|>", .list = true,
	  .name_field = "tool_name", .args_field = "parameters", .between = ", ",
	  .mark = { [M_CALL] = "<|START_ACTION|>", [M_CALL_END] = "<|END_ACTION|>" } },
	{ .name = { "internlm" }, .style = CALL_OBJECT, .seen = "<|action_start|>", .name_field = "name",
	  .args_field = "parameters", .between = "",
	  .mark = { [M_CALL] = "<|action_start|><|plugin|>", [M_CALL_END] = "<|action_end|>" } },
	{ .name = { "phi4_mini_json" }, .style = CALL_OBJECT, .seen = "functools", .list = true,
	  .name_field = SAME, .between = ", ", .mark = { [M_CALL] = "functools" } },
	{ .name = { "granite-20b-fc" }, .style = CALL_OBJECT, .seen = "<function_call>", .name_field = SAME,
	  .between = " ", .mark = { [M_CALL] = "<function_call>" } },
	{ .name = { "granite" }, .style = CALL_OBJECT, .seen = "<|tool_call|>", .list = true, .name_field = SAME,
	  .between = ", ", .mark = { [M_CALL] = "<|tool_call|>" } },
	{ .name = { "longcat" }, .style = CALL_OBJECT, .seen = "<longcat_tool_call>", .name_field = SAME,
	  .gap = "\n", .between = "\n",
	  .mark = { [M_CALL] = "<longcat_tool_call>", [M_CALL_END] = "</longcat_tool_call>" } },
	{ .name = { "jamba", "hunyuan_a13b", "minimax" }, .style = CALL_OBJECT, .seen = "<tool_calls>",
	  .list = true, .name_field = SAME, .between = ", ",
	  .mark = { [M_CALL] = "<tool_calls>", [M_CALL_END] = "</tool_calls>" } },
	{ .name = { "gigachat3" }, .style = CALL_OBJECT, .seen = "function call{", .name_field = SAME,
	  .between = "", .mark = { [M_CALL] = "function call" } },
	{ .name = { "hermes", "granite4", "ernie45", "qwen3", "qwen2_5" }, .style = CALL_OBJECT,
	  .seen = "<tool_call>", .name_field = SAME, .gap = "\n", .between = "\n",
	  .mark = { [M_CALL] = "<tool_call>", [M_CALL_END] = "</tool_call>" } },
	{ .name = { "llama3_json", "llama4_json", "llama3" }, .style = CALL_OBJECT, .seen = "<|python_tag|>",
	  .name_field = "name", .args_field = "parameters", .bare = true, .between = "; ",
	  .mark = { [M_CALL] = "<|python_tag|>" } },
	{ .name = { "pythonic" }, .style = CALL_PYTHON, .seen = "[func_name1(", .list = true, .bare = true,
	  .between = ", " },
	{ .name = { "xlam" }, .style = CALL_OBJECT, .list = true, .bare = true, .name_field = SAME,
	  .between = ", " },
	{ .name = { "generic" }, .style = CALL_OBJECT, .list = true, .bare = true, .name_field = "name",
	  .args_field = "parameters", .between = ", " },
};
#define N_FORMATS (sizeof(format) / sizeof(format[0]))

/* The template of a row with `opened` puts the start into the prompt, or the model leaves it out. */
static const struct think_format think[] = {
	{ .name = { "openai_gptoss", "gptoss" }, .start = "", .end = "", .seen = "<|channel|>" },
	{ .name = { "granite" }, .start = "Here is my thought process:", .end = "Here is my response:",
	  .seen = "Here is my thought process:" },
	{ .name = { "mistral" }, .start = "[THINK]", .end = "[/THINK]", .seen = "[THINK]" },
	{ .name = { "gemma4" }, .start = "<|channel>thought\n", .end = "<channel|>", .seen = "<|channel>"
	  "thought" },
	{ .name = { "seed_oss" }, .start = "<seed:think>", .end = "</seed:think>", .seen = "<seed:think>" },
	{ .name = { "cohere_command3" }, .start = "<|START_THINKING|>", .end = "<|END_THINKING|>",
	  .seen = "<|START_THINKING|>" },
	{ .name = { "deepseek_r1", "minimax_m2", "step3", "kimi_k2_thinking" }, .start = "<think>",
	  .end = "</think>", .opened = true },
	{ .name = { "ernie45" }, .start = "<think>", .end = "</think>", .opened = true,
	  .alternative = "<response>" },
	{ .name = { "qwen3", "deepseek_v3", "glm45", "kimi_k2", "hunyuan_a13b", "olmo3", "nemotron_v3", "holo2" },
	  .start = "<think>", .end = "</think>", .seen = "</think>", .ends_at_call = true },
};
#define N_THINKS (sizeof(think) / sizeof(think[0]))

const struct call_format *format_named(const char *name)
{
	for (size_t i = 0; i < N_FORMATS; i++)
		for (size_t k = 0; k < 6 && format[i].name[k]; k++)
			if (!strcmp(format[i].name[k], name))
				return &format[i];
	return NULL;
}

const struct call_format *format_of(const char *source)
{
	for (size_t i = 0; source && i < N_FORMATS; i++)
		if (format[i].seen && strstr(source, format[i].seen) &&
		    (!format[i].also || strstr(source, format[i].also)))
			return &format[i];
	return format_named("generic");
}

const struct think_format *think_named(const char *name)
{
	for (size_t i = 0; i < N_THINKS; i++)
		for (size_t k = 0; k < 8 && think[i].name[k]; k++)
			if (!strcmp(think[i].name[k], name))
				return &think[i];
	return NULL;
}

const struct think_format *think_of(const char *source)
{
	for (size_t i = 0; source && i < N_THINKS; i++)
		if (think[i].seen && strstr(source, think[i].seen))
			return &think[i];
	return NULL;
}

static void add_name(char *out, size_t cap, const char *name)
{
	size_t n = strlen(out);

	snprintf(out + n, cap - n, "%s%s", n ? ", " : "", name);
}

void formats_list(char *out, size_t cap)
{
	*out = 0;
	for (size_t i = 0; i < N_FORMATS; i++)
		for (size_t k = 0; k < 6 && format[i].name[k]; k++)
			add_name(out, cap, format[i].name[k]);
}

void thinks_list(char *out, size_t cap)
{
	*out = 0;
	for (size_t i = 0; i < N_THINKS; i++)
		for (size_t k = 0; k < 8 && think[i].name[k]; k++)
			add_name(out, cap, think[i].name[k]);
}
