/* The command `addend export`: its options and its call. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"
#include "addend/helpers.h"

enum { KEY_DTYPE = 'd', KEY_OVERWRITE = 'o', KEY_JSON = 'j', TEXT_SIZE = 8192 };

static const struct argp_option options[] = {
    {"dtype", KEY_DTYPE, "DTYPE", 0,
     "Dtype of the written weights: f32, bf16 or f16 (default: as they were read with model.from, else as the run "
     "keeps them)",
     0},
    {"overwrite", KEY_OVERWRITE, NULL, 0, "Replace an earlier export in the folder", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON document on standard output and nothing else there", 0},
    {0},
};

typedef struct export_input {
  const char *run, *folder;
  ad_export_options options;
  int json;
} export_input;

static const char *export_word(int key, int index) {
  static const char *const dtypes[] = {"f32", "bf16", "f16"};
  return key == KEY_DTYPE && index < 3 ? dtypes[index] : NULL;
}

static void parse_dtype(const char *argument, export_input *input, struct argp_state *state) {
  const char *word;
  for (int i = 0; (word = export_word(KEY_DTYPE, i)); i++)
    if (!strcmp(argument, word) && !ad_dtype_parse(argument, &input->options.dtype)) return;
  ad_cli_wrong(state, "--dtype takes f32, bf16 or f16, not '%s'", argument);
}

static void take_word(export_input *input, const char *word, struct argp_state *state) {
  if (!*word)
    ad_cli_wrong(state, "the names RUN and FOLDER must not be empty");
  else if (!input->run)
    input->run = word;
  else if (!input->folder)
    input->folder = word;
  else
    ad_cli_wrong(state, "the command takes RUN and FOLDER, but '%s' follows them; leave it out", word);
}

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  export_input *input = state->input;
  switch (key) {
    case KEY_DTYPE:
      return parse_dtype(argument, input, state), 0;
    case KEY_OVERWRITE:
      return input->options.overwrite = 1, 0;
    case KEY_JSON:
      return input->json = 1, 0;
    case ARGP_KEY_ARG:
      return take_word(input, argument, state), 0;
    case ARGP_KEY_END:
      if (!input->folder)
        ad_cli_wrong(state,
                     "RUN and FOLDER are needed, the folder of a run and the one to write, for example runs/t out");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp export_argp = {
    .options = options,
    .parser = parse_option,
    .args_doc = "RUN FOLDER",
    .doc =
        "Writes the weights of a run as Hugging Face Transformers reads them: a folder with config.json, safetensors "
        "and, where the run began with a model that had them, its tokenizer. Weights are those at the run's end, or of "
        "its newest checkpoint."
        "\vExample: addend export runs/llama-tuned llama-tuned --dtype bf16\n"
        "In Python: AutoModelForCausalLM.from_pretrained(\"llama-tuned\")\n"
        "Exit status: 0 it is written, 2 the call is wrong or Transformers has no such model, 3 could not finish.",
};

static int print_document(const export_input *input, const ad_exported *done) {
  json_t *document = json_pack("{s:s%, s:s, s:I, s:I, s:I}", "folder", input->folder, strlen(input->folder),
                               "architecture", done->architecture, "tensors", (json_int_t)done->tensors, "bytes",
                               (json_int_t)done->bytes, "files", (json_int_t)done->files);
  char *text = ad_cli_json(document, JSON_COMPACT);
  int failed = text ? ad_cli_print(text) : CLI_UNFINISHED;
  if (!text)
    fprintf(stderr,
            "addend: the folder's name is not UTF-8, so the JSON document cannot be printed; choose a name in UTF-8\n");
  free(text);
  return failed;
}

static int print_line(const export_input *input, const ad_exported *done) {
  char text[TEXT_SIZE], printable[CLI_MESSAGE];
  snprintf(text, sizeof text, "%s: %s, %" PRId64 " tensors of %.1f MB together in %" PRId64 " file%s",
           ad_printable(input->folder, printable, sizeof printable), done->architecture, done->tensors,
           (double)done->bytes / 1e6, done->files, done->files == 1 ? "" : "s");
  return ad_cli_print(text);
}

static int run_export(int argc, char **argv) {
  export_input input = {.options = {.size = sizeof input.options}};
  ad_exported done;
  ad_cli_parse(&export_argp, argc, argv, 0, &input);
  ad_status status = ad_export(input.run, input.folder, &input.options, &done);
  if (status) return ad_cli_failed(status);
  return input.json ? print_document(&input, &done) : print_line(&input, &done);
}

const ad_cli_command ad_cli_export = {
    "export", run_export, "write a run's weights as Hugging Face Transformers reads them", &export_argp, export_word};
