/* The command `addend sample`: its options and its call. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tokenizer.h"
#include "trainer.h"

enum { KEY_DTYPE = 'd', KEY_JSON = 'j', KEY_NUMBERS = 'u', KEY_SEED = 's', KEY_TEMPERATURE = 't', KEY_TOKENS = 'n' };
enum { PATH_SIZE = 4096 };

static const struct argp_option options[] = {
    {"tokens", KEY_TOKENS, "N", 0, "How many tokens to add (default: 100); fewer if the model ends its text", 0},
    {"temperature", KEY_TEMPERATURE, "T", 0,
     "Draw from softmax(logits / T); 0 (the default): always the most probable token", 0},
    {"seed", KEY_SEED, "N", 0, "Seed of the draws (default: 1)", 0},
    {"dtype", KEY_DTYPE, "DTYPE", 0, "Dtype to compute in: f32 (default), bf16 or f64", 0},
    {"numbers", KEY_NUMBERS, NULL, 0, "PROMPT and what is printed are numbers of tokens, such as \"17 4 250\"", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON document on standard output and nothing else there", 0},
    {0},
};

typedef struct sample_input {
  const char *from, *prompt;
  ad_sampler_options options;
  int64_t tokens;
  int numbers, json;
} sample_input;

static const char *sample_word(int key, int index) {
  static const char *const dtypes[] = {"f32", "bf16", "f64"};
  return key == KEY_DTYPE && index < 3 ? dtypes[index] : NULL;
}

/* ---- parsing the options ---- */

static void parse_dtype(const char *argument, sample_input *input, struct argp_state *state) {
  const char *word;
  for (int i = 0; (word = sample_word(KEY_DTYPE, i)); i++)
    if (!strcmp(argument, word) && !ad_dtype_parse(argument, &input->options.dtype)) return;
  ad_cli_wrong(state, "--dtype takes f32, bf16 or f64, not '%s'", argument);
}

static int64_t parse_count(const char *argument, const char *option, int64_t least, struct argp_state *state) {
  char *end;
  errno = 0;
  long long value = strtoll(argument, &end, 10);
  if (errno || *end || end == argument || value < least)
    ad_cli_wrong(state, "%s takes a whole number from %lld on, not '%s'", option, (long long)least, argument);
  return value;
}

static void parse_temperature(const char *argument, sample_input *input, struct argp_state *state) {
  char *end;
  input->options.temperature = strtod(argument, &end);
  if (*end || end == argument || !(input->options.temperature >= 0) || input->options.temperature > 1e6)
    ad_cli_wrong(state, "--temperature takes a number from 0 to 1000000, not '%s'", argument);
}

static void take_word(sample_input *input, const char *word, struct argp_state *state) {
  if (!input->from)
    input->from = word;
  else if (!input->prompt)
    input->prompt = word;
  else
    ad_cli_wrong(state, "the command takes one PROMPT, but '%s' follows it; put a prompt of several words in quotes",
                 word);
}

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  sample_input *input = state->input;
  switch (key) {
    case KEY_TOKENS:
      return input->tokens = parse_count(argument, "--tokens", 1, state), 0;
    case KEY_SEED:
      return input->options.seed = (uint64_t)parse_count(argument, "--seed", 0, state), 0;
    case KEY_TEMPERATURE:
      return parse_temperature(argument, input, state), 0;
    case KEY_DTYPE:
      return parse_dtype(argument, input, state), 0;
    case KEY_NUMBERS:
      return input->numbers = 1, 0;
    case KEY_JSON:
      return input->json = 1, 0;
    case ARGP_KEY_ARG:
      return take_word(input, argument, state), 0;
    case ARGP_KEY_END:
      if (!input->prompt || !*input->prompt)
        ad_cli_wrong(state, "RUN or FOLDER, and PROMPT, are needed, for example `addend sample runs/t \"Once upon\"`");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp sample_argp = {
    .options = options,
    .parser = parse_option,
    .args_doc = "RUN|FOLDER PROMPT",
    .doc =
        "Continues a text: the folder is that of a run, or of a model as Hugging Face Transformers saves it. A "
        "model of bytes reads and writes text; another one too where its folder has a tokenizer.json and Python "
        "(python3, or $ADDEND_PYTHON) the package tokenizers, otherwise numbers of tokens."
        "\vExample: addend sample runs/finetune \"Once upon a time\" --tokens 200\n"
        "Exit status: 0 the text was continued, 2 the call is wrong or there is no such model, 3 could not finish.",
};

/* ---- the prompt as tokens ---- */

/* The tokens of the prompt, and then the sampled tokens. */
typedef struct sequence {
  int32_t *tokens;
  int64_t prompt, count, room;
  ad_cli_tokenizer tokenizer;
  int is_text;    /* 1: each token is a byte */
  char *reported; /* the text printed so far, if there is a tokenizer */
  double seconds; /* seconds that the sampled tokens took */
  int ended;      /* 1: the model sampled a token that ends its text */
  int is_mute;    /* 1: the tokenizer failed and returns no more text */
} sequence;

static int add_token(sequence *s, int64_t token) {
  if (s->count == s->room) {
    int64_t room = s->room ? 2 * s->room : 256;
    int32_t *more = realloc(s->tokens, (size_t)room * sizeof *more);
    if (!more) return 0;
    s->tokens = more;
    s->room = room;
  }
  int64_t nearest = token < INT32_MIN ? INT32_MIN : token; /* out of range for int32_t: becomes the nearest one,
                                                            * which is no token either */
  s->tokens[s->count++] = (int32_t)(nearest > INT32_MAX ? INT32_MAX : nearest);
  return 1;
}

static int add_numbers(sequence *s, const char *text) {
  while (*text) {
    char *end;
    long long token = strtoll(text, &end, 10);
    if (end == text) {
      fprintf(stderr, "addend sample: PROMPT must be token numbers, such as \"17 4 250\", but has '%.20s'\n", text);
      return 0;
    }
    if (!add_token(s, token)) return 0;
    text = end + strspn(end, " ,\n\t");
  }
  return s->count > 0;
}

static int add_bytes(sequence *s, const char *text) {
  int whole = 1;
  for (; *text && whole; text++) whole = add_token(s, (unsigned char)*text);
  return whole;
}

static int add_encoded(sequence *s, const char *text) {
  size_t i;
  json_t *token, *question = json_string(text), *tokens;
  if (!question) {
    fprintf(stderr, "addend sample: PROMPT is not UTF-8; the tokenizer needs text in UTF-8\n");
    return 0;
  }
  tokens = ad_cli_tokenizer_ask(&s->tokenizer, question);
  int whole = json_is_array(tokens) && json_array_size(tokens) > 0;
  if (!whole) fprintf(stderr, "addend sample: the tokenizer returned no tokens for PROMPT; give another text\n");
  json_array_foreach(tokens, i, token) whole = whole && add_token(s, json_integer_value(token));
  json_decref(tokens);
  return whole;
}

static void find_tokenizer(const sample_input *input, sequence *s) {
  char path[PATH_SIZE];
  snprintf(path, sizeof path, "%s/tokenizer.json", input->from);
  if (access(path, R_OK)) return;
  ad_cli_tokenizer_start(path, &s->tokenizer);
}

static int read_prompt(const sample_input *input, const ad_sampler *sampler, sequence *s) {
  s->is_text = !input->numbers && ad_sampler_tokens_are_bytes(sampler);
  if (!input->numbers && !s->is_text) find_tokenizer(input, s);
  int whole = s->is_text             ? add_bytes(s, input->prompt)
              : s->tokenizer.process ? add_encoded(s, input->prompt)
                                     : add_numbers(s, input->prompt);
  s->prompt = s->count;
  return whole;
}

/* ---- printing tokens as they are sampled ---- */

/* Returns the text of all tokens, or NULL if the tokenizer failed. */
static char *decoded(sequence *s) {
  json_t *tokens = json_array();
  for (int64_t i = 0; tokens && i < s->count; i++) json_array_append_new(tokens, json_integer(s->tokens[i]));
  json_t *text = ad_cli_tokenizer_ask(&s->tokenizer, tokens);
  char *copy = json_is_string(text) ? strdup(json_string_value(text)) : NULL;
  json_decref(text);
  s->is_mute = !copy;
  return copy;
}

/* Returns 1 if the text ends in U+FFFD, which decoders write for a character of which some tokens are still missing. */
static int is_open(const char *text) {
  size_t length = strlen(text);
  return length >= 3 && !strcmp(text + length - 3, "\xEF\xBF\xBD");
}

static void report_more(sequence *s) {
  char *text = decoded(s);
  if (!text || is_open(text)) {
    free(text);
    return;
  }
  size_t before = s->reported ? strlen(s->reported) : 0;
  if (strlen(text) > before) fputs(text + before, stdout);
  free(s->reported);
  s->reported = text;
}

/* Prints the part of the sequence that begins with token `first`. */
static void print_new(sequence *s, int64_t first) {
  if (s->tokenizer.process) report_more(s);
  for (int64_t i = first; i < s->count && !s->tokenizer.process; i++) {
    if (s->is_text)
      putchar(s->tokens[i]);
    else
      printf("%s%" PRId32, i ? " " : "", s->tokens[i]);
  }
  fflush(stdout);
}

/* ---- the sampling loop ---- */

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static ad_status next(ad_sampler *sampler, sequence *s) {
  int32_t token;
  ad_status status = ad_sampler_choose(sampler, &token);
  if (status) return status;
  s->ended = ad_sampler_ends(sampler, token);
  return add_token(s, token) ? AD_OK : ad_fail(AD_MEMORY, "no memory for %" PRId64 " tokens", s->count);
}

/* Returns 1 if no further output can be read: the tokenizer has failed, or the reader of standard output is gone. */
static int is_in_vain(const sequence *s) { return s->is_mute || ferror(stdout); }

static int goes_on(const sample_input *input, const sequence *s) {
  return !s->ended && !is_in_vain(s) && s->count - s->prompt < input->tokens;
}

static ad_status go_on(const sample_input *input, ad_sampler *sampler, sequence *s) {
  ad_status status = ad_sampler_read(sampler, s->tokens, s->prompt);
  if (!status && !input->json) print_new(s, 0);
  double begin = now();
  while (!status && goes_on(input, s)) {
    status = next(sampler, s);
    if (!status && !input->json && !s->ended) print_new(s, s->count - 1);
    if (!status && goes_on(input, s)) status = ad_sampler_read(sampler, &s->tokens[s->count - 1], 1);
  }
  s->seconds = now() - begin;
  return status;
}

static double rate_of(const sequence *s) { return s->seconds > 0 ? (double)(s->count - s->prompt) / s->seconds : 0; }

static json_t *list(const sequence *s, int64_t first, int64_t end) {
  json_t *tokens = json_array();
  for (int64_t i = first; i < end; i++) json_array_append_new(tokens, json_integer(s->tokens[i]));
  return tokens;
}

static json_t *text_of(sequence *s) {
  char *text = s->tokenizer.process ? decoded(s) : NULL;
  json_t *out = text ? json_string(text) : NULL;
  free(text);
  return out ? out : json_null();
}

static int is_mute(const sequence *s) {
  if (s->is_mute)
    fprintf(stderr,
            "addend sample: the process of the tokenizer (Python) ended before it returned the text; print numbers "
            "with --numbers\n");
  return s->is_mute;
}

static int print_document(sequence *s) {
  json_t *document =
      json_pack("{s:o, s:o, s:o, s:b, s:f}", "prompt", list(s, 0, s->prompt), "tokens", list(s, s->prompt, s->count),
                "text", text_of(s), "ended", s->ended, "tokens_per_second", rate_of(s));
  char *text = ad_cli_json(document, JSON_COMPACT);
  int failed = text && !is_mute(s) ? ad_cli_print(text) : CLI_UNFINISHED;
  free(text);
  return failed;
}

static int print_end(const sequence *s) {
  int failed = ad_cli_print("\n");
  if (is_mute(s)) return CLI_UNFINISHED;
  if (failed || ferror(stdout)) return failed;
  fprintf(stderr, "%" PRId64 " tokens, %.1f tokens per second%s\n", s->count - s->prompt, rate_of(s),
          s->ended ? "; the model ended its text" : "");
  return CLI_HOLDS;
}

static int sample(const sample_input *input, ad_sampler *sampler, sequence *s) {
  if (!read_prompt(input, sampler, s)) return CLI_WRONG_CALL;
  ad_status status = go_on(input, sampler, s);
  if (status) return ad_cli_failed(status);
  return input->json ? print_document(s) : print_end(s);
}

static int run_sample(int argc, char **argv) {
  sample_input input = {.options = {.size = sizeof input.options, .seed = 1}, .tokens = 100};
  ad_sampler *sampler;
  sequence s = {0};
  ad_cli_parse(&sample_argp, argc, argv, 0, &input);
  ad_status status = ad_sampler_open(input.from, &input.options, &sampler);
  if (status) {
    int result = ad_cli_failed(status);
    int is_forbidden = access(input.from, R_OK | X_OK) && errno == EACCES;
    // AD_IO here means that the call does not name a model.
    return status == AD_IO && !is_forbidden ? CLI_WRONG_CALL : result;
  }
  int failed = sample(&input, sampler, &s);
  ad_cli_tokenizer_end(&s.tokenizer);
  free(s.tokens);
  free(s.reported);
  ad_sampler_close(sampler);
  return failed;
}

const ad_cli_command ad_cli_sample = {"sample", run_sample, "continue a text, token by token", &sample_argp,
                                      sample_word};
