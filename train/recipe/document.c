/* Makes a tree from libyaml's document, with the line of each node. The meaning of keys is not known here. */
#include "recipe/document.h"

#include <stdio.h>
#include <string.h>
#include <yaml.h>
#include "base/error.h"
#include "base/memory.h"

enum {
  DEPTH_MAX = 32,
  NODES_MAX = 4000
};  // limits of a tree; they are needed because an alias may repeat the node that it names any number of times

static const char too_deep[] = "the recipe is nested too deeply or has too many values here";

typedef struct builder {
  yaml_document_t *yaml;
  ad_recipe_place place; /* where the document is */
  ad_recipe_errors *errors;
  int nodes;
  int wrong; /* 1: there is no tree, or only a part of one */
} builder;

void ad_node_destroy(ad_node *node) {
  while (node) {
    ad_node *next = node->next;
    ad_node_destroy(node->children);
    ad_release(node->text);
    ad_release(node->key);
    ad_release(node);
    node = next;
  }
}

int ad_node_is_empty(const ad_node *node) { return node->kind == AD_NODE_SCALAR && node->plain && !*node->text; }

ad_node *ad_node_find(const ad_node *map, const char *key) {
  if (!map || map->kind != AD_NODE_MAP) return NULL;
  ad_node *child = map->children;
  while (child && strcmp(child->key, key) != 0) child = child->next;
  return child;
}

size_t ad_node_child_count(const ad_node *node) {
  size_t count = 0;
  for (const ad_node *child = node->children; child; child = child->next) count++;
  return count;
}

ad_status ad_node_new_map(ad_recipe_place place, ad_node **out) {
  ad_node *map;
  AD_TRY(ad_new(1, &map));
  map->kind = AD_NODE_MAP;
  map->place = place;
  *out = map;
  return AD_OK;
}

ad_status ad_node_put(ad_node *map, const char *key, ad_node *node) {
  char *name;
  AD_TRY(ad_copy_string(key, &name));
  ad_release(node->key);
  node->key = name;
  ad_node **link = &map->children;
  while (*link && strcmp((*link)->key, name) != 0) link = &(*link)->next;
  ad_node *old = *link;
  node->next = old ? old->next : NULL;
  *link = node;
  if (old) old->next = NULL;
  ad_node_destroy(old);
  return AD_OK;
}

static void complain(builder *b, int64_t line, const char *message) {
  ad_recipe_place place = b->place;
  if (!place.order) place.line = line;
  ad_recipe_errors_add(b->errors, place, "", "%s", message);
}

static ad_recipe_place node_place(const builder *b, const yaml_node_t *node) {
  ad_recipe_place place = b->place;
  if (!place.order) place.line = (int64_t)node->start_mark.line + 1;
  return place;
}

static ad_status build(builder *b, int index, int depth, ad_node **out);

static ad_status build_scalar(builder *b, const yaml_node_t *from, ad_node *node) {
  const char *value = (const char *)from->data.scalar.value;
  if (strlen(value) != from->data.scalar.length)
    complain(b, node->place.line, "a value contains a zero byte (\\0); remove it");
  node->plain = from->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
  return ad_copy_string(value, &node->text);
}

static ad_status build_list(builder *b, const yaml_node_t *from, int depth, ad_node *node) {
  ad_node **end = &node->children;
  for (yaml_node_item_t *item = from->data.sequence.items.start; item < from->data.sequence.items.top; item++) {
    AD_TRY(build(b, *item, depth + 1, end));
    end = &(*end)->next;
  }
  return AD_OK;
}

/* Makes the node of a key and its value in a map. Adds an error if the key is no name or is given twice. */
static ad_status build_pair(builder *b, const yaml_node_pair_t *pair, int depth, ad_node *map, ad_node **out) {
  const yaml_node_t *key = yaml_document_get_node(b->yaml, pair->key);
  int64_t line = (int64_t)key->start_mark.line + 1;
  if (key->type != YAML_SCALAR_NODE) {
    complain(b, line, "a key must be a name, but is a list or a mapping");
    return AD_OK;
  }
  const char *name = (const char *)key->data.scalar.value;
  const ad_node *first = ad_node_find(map, name);
  if (first) {
    ad_recipe_place place = node_place(b, key);
    char words[64] = "is given twice; keep one";
    if (place.line)
      snprintf(words, sizeof words, "is given twice, first on line %lld; keep one", (long long)first->place.line);
    ad_recipe_errors_add(b->errors, place, name, "%s", words);
    return AD_OK;
  }
  AD_TRY(build(b, pair->value, depth + 1, out));
  (*out)->place = node_place(b, key);  // the line of a node is that of its key; the value may start on a later line
  return ad_copy_string(name, &(*out)->key);
}

/* Makes the nodes of all pairs in a map. */
static ad_status build_map(builder *b, const yaml_node_t *from, int depth, ad_node *node) {
  for (yaml_node_pair_t *pair = from->data.mapping.pairs.start; pair < from->data.mapping.pairs.top; pair++) {
    ad_node *child = NULL;
    ad_status status = build_pair(b, pair, depth, node, &child);
    if (!status && child) status = ad_node_put(node, child->key, child);
    if (status) {
      ad_node_destroy(child);
      return status;
    }
  }
  return AD_OK;
}

static ad_status build_node(builder *b, const yaml_node_t *from, int depth, ad_node *node) {
  if (from->type == YAML_SCALAR_NODE) return build_scalar(b, from, node);
  return from->type == YAML_SEQUENCE_NODE ? build_list(b, from, depth, node) : build_map(b, from, depth, node);
}

/* Makes the tree's node from node `index` of libyaml's document, with all nodes below it. */
static ad_status build(builder *b, int index, int depth, ad_node **out) {
  static const ad_node_kind kinds[] = {
      [YAML_SCALAR_NODE] = AD_NODE_SCALAR, [YAML_SEQUENCE_NODE] = AD_NODE_LIST, [YAML_MAPPING_NODE] = AD_NODE_MAP};
  const yaml_node_t *from = yaml_document_get_node(b->yaml, index);
  ad_node *node;
  AD_TRY(ad_new(1, &node));
  *out = node;
  node->place = node_place(b, from);
  if (depth > DEPTH_MAX || ++b->nodes > NODES_MAX) {
    if (!b->wrong) complain(b, node->place.line, too_deep);
    b->wrong = 1;
    return ad_copy_string("", &node->text);
  }
  node->kind = kinds[from->type];
  return build_node(b, from, depth, node);
}

/* ---- limiting the depth before the tree is made ---- */

/* Returns 1 if the event opens a list or a map, -1 if it closes one, else 0. */
static int opened_by(const yaml_event_t *event) {
  int opens = event->type == YAML_SEQUENCE_START_EVENT || event->type == YAML_MAPPING_START_EVENT;
  int closes = event->type == YAML_SEQUENCE_END_EVENT || event->type == YAML_MAPPING_END_EVENT;
  return opens - closes;
}

/* Reads events until the end or the first error, or until the nesting is too deep. Returns the line where it is too
 * deep, else 0. */
static int64_t line_too_deep(yaml_parser_t *parser) {
  int64_t line = 0;
  int open = 0, ended = 0;
  while (!line && !ended) {
    yaml_event_t event;
    if (!yaml_parser_parse(parser, &event)) return 0;  // the error is reported when the tree is built
    open += opened_by(&event);
    if (open > DEPTH_MAX + 1) line = (int64_t)event.start_mark.line + 1;
    ended = event.type == YAML_STREAM_END_EVENT || event.type == YAML_NO_EVENT;
    yaml_event_delete(&event);
  }
  return line;
}

static ad_status open_parser(yaml_parser_t *parser, const char *text, size_t size, const char *origin) {
  if (!yaml_parser_initialize(parser)) return ad_fail(AD_MEMORY, "no memory to read %s", origin);
  yaml_parser_set_input_string(parser, (const unsigned char *)text, size);
  yaml_parser_set_encoding(parser, YAML_UTF8_ENCODING);
  return AD_OK;
}

/* Refuses a document that is nested too deeply, before libyaml builds its tree. libyaml searches all open brackets at
 * each token, so its time would grow with the square of the number of brackets. */
static ad_status refuse_depth(builder *b, const char *text, size_t size) {
  yaml_parser_t parser;
  AD_TRY(open_parser(&parser, text, size, b->place.origin));
  int64_t line = line_too_deep(&parser);
  yaml_parser_delete(&parser);
  if (!line) return AD_OK;
  complain(b, line, too_deep);
  b->wrong = 1;
  return AD_OK;
}

/* Returns the length of the byte order mark that some editors write in front of UTF-8. */
static size_t byte_order_mark(const char *text, size_t size) {
  return size >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0;
}

/* ---- making the tree of nodes ---- */

static const char *hint_for(const char *problem) {
  if (strstr(problem, "UTF-8")) return "; a recipe is text in UTF-8";
  return strstr(problem, "cannot start any token") ? "; indent with spaces, not with tabs" : "";
}

/* Adds an error with the parser's words and line. */
static ad_status not_yaml(const yaml_parser_t *parser, const char *text, size_t size, builder *b) {
  if (parser->error == YAML_MEMORY_ERROR) return ad_fail(AD_MEMORY, "no memory to read %s", b->place.origin);
  int64_t line = (int64_t)parser->problem_mark.line + 1;
  if (parser->error == YAML_READER_ERROR) {  // this kind of error has an offset instead of a line
    line = 1;
    for (size_t i = 0; i < size && i < parser->problem_offset; i++) line += text[i] == '\n';
  }
  const char *problem = parser->problem ? parser->problem : "it cannot be read";
  char message[256];
  snprintf(message, sizeof message, "this is not valid YAML (%s%s)", problem, hint_for(problem));
  complain(b, line, message);
  b->wrong = 1;
  return AD_OK;
}

/* Makes the tree. An empty document becomes an empty scalar. */
static ad_status build_root(builder *b, ad_node **out) {
  ad_node *root = NULL;
  ad_status status;
  if (yaml_document_get_root_node(b->yaml)) {
    status = build(b, 1, 0, &root);
  } else {
    status = ad_node_new_map(b->place, &root);
    if (!status) root->kind = AD_NODE_SCALAR;
    if (!status) root->plain = 1;
    if (!status) status = ad_copy_string("", &root->text);
  }
  if (status || b->wrong) {
    ad_node_destroy(root);
    return status;
  }
  *out = root;
  return AD_OK;
}

static ad_status refuse_second(yaml_parser_t *parser, const char *text, size_t size, builder *b) {
  yaml_document_t second;
  if (!yaml_parser_load(parser, &second)) return not_yaml(parser, text, size, b);
  const yaml_node_t *root = yaml_document_get_root_node(&second);
  if (root)
    complain(b, (int64_t)root->start_mark.line + 1,
             "a second YAML document starts on this line; a recipe must be one document");
  yaml_document_delete(&second);
  return AD_OK;
}

static ad_status parse_yaml(yaml_parser_t *parser, const char *text, size_t size, builder *b, ad_node **out) {
  if (!yaml_parser_load(parser, b->yaml)) return not_yaml(parser, text, size, b);
  ad_status status = build_root(b, out);
  // only if the stream had a document: libyaml may not be asked for a second one otherwise
  if (!status && yaml_document_get_root_node(b->yaml)) status = refuse_second(parser, text, size, b);
  yaml_document_delete(b->yaml);
  return status;
}

ad_status ad_document_parse(const char *text, size_t size, ad_recipe_place place, ad_recipe_errors *errors,
                            ad_node **out) {
  yaml_parser_t parser;
  yaml_document_t yaml;
  builder b = {.yaml = &yaml, .place = place, .errors = errors};
  ad_node *root = NULL;
  size_t mark = byte_order_mark(text, size);
  text += mark;
  size -= mark;
  AD_TRY(refuse_depth(&b, text, size));
  if (b.wrong) {
    *out = NULL;
    return AD_OK;
  }
  AD_TRY(open_parser(&parser, text, size, place.origin));
  ad_status status = parse_yaml(&parser, text, size, &b, &root);
  yaml_parser_delete(&parser);
  if (status || b.wrong) {
    ad_node_destroy(root);
    root = NULL;
  }
  *out = root;
  return status;
}
