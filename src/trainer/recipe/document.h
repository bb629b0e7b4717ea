/* A YAML document as a tree in which every node knows where it was written. */
#ifndef RECIPE_DOCUMENT_H
#define RECIPE_DOCUMENT_H
#include "recipe/errors.h"

typedef enum ad_node_kind { AD_NODE_SCALAR, AD_NODE_LIST, AD_NODE_MAP } ad_node_kind;
typedef struct ad_node ad_node;
struct ad_node {
  ad_node_kind kind;
  int plain;  /* of a scalar: written without quotes */
  char *text; /* of a scalar */
  char *key;  /* in the map it stands in; NULL elsewhere */
  ad_recipe_place place;
  ad_node *children, *next; /* in the order written */
};

/* Reads the one document in `text`. Where it is no YAML, an error is added and *out is NULL. An empty document is an
 * empty scalar. */
AD_CHECKED ad_status ad_document_parse(const char *text, size_t size, ad_recipe_place place, ad_recipe_errors *errors,
                                       ad_node **out);
void ad_node_destroy(ad_node *node);                        /* NULL allowed */
int ad_node_is_empty(const ad_node *node);                  /* nothing was written: "train:" */
ad_node *ad_node_find(const ad_node *map, const char *key); /* NULL if map is no map or has no such key */
size_t ad_node_child_count(const ad_node *node);
/* An empty map. */
AD_CHECKED ad_status ad_node_new_map(ad_recipe_place place, ad_node **out);
/* Puts `node` into the map in place of what stands under that key; the map owns it only on success. */
AD_CHECKED ad_status ad_node_put(ad_node *map, const char *key, ad_node *node);

#endif
