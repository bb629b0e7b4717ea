/* A YAML document as a tree in which every node knows in which file and line it is written. */
#ifndef RECIPE_DOCUMENT_H
#define RECIPE_DOCUMENT_H
#include "recipe/errors.h"

typedef enum ad_node_kind { AD_NODE_SCALAR, AD_NODE_LIST, AD_NODE_MAP } ad_node_kind;
typedef struct ad_node ad_node;
struct ad_node {
  ad_node_kind kind;
  int plain;  /* for scalars: 1 if it is written without quotes */
  char *text; /* for scalars: the value */
  char *key;  /* the node's key in its map; NULL for elements of lists */
  ad_recipe_place place;
  ad_node *children, *next; /* the first child, in written order, and the next sibling */
};

/* Reads `text`, which must be one document. If it is no YAML, adds an error and sets *out to NULL. An empty document is
 * an empty scalar. */
AD_CHECKED ad_status ad_document_parse(const char *text, size_t size, ad_recipe_place place, ad_recipe_errors *errors,
                                       ad_node **out);
void ad_node_destroy(ad_node *node);                        /* `node` may be NULL */
int ad_node_is_empty(const ad_node *node);                  /* returns 1 if the key has no value ("train:") */
ad_node *ad_node_find(const ad_node *map, const char *key); /* returns NULL if `map` is no map or does not have the
                                                             * key */
size_t ad_node_child_count(const ad_node *node);
/* Makes an empty map. */
AD_CHECKED ad_status ad_node_new_map(ad_recipe_place place, ad_node **out);
/* Puts `node` into the map, in place of a node with the same key. On success the map owns `node`. */
AD_CHECKED ad_status ad_node_put(ad_node *map, const char *key, ad_node *node);

#endif
