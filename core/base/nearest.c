/* Finds the known name that is most similar to an unknown one. */
#include "base/nearest.h"
#include "addend/helpers.h"

#include <string.h>

static int least_of(int a, int b, int c) {
  int least = a < b ? a : b;
  return least < c ? least : c;
}

int ad_name_distance(const char *a, const char *b) {
  int rows = (int)strlen(a), columns = (int)strlen(b);
  int distance[AD_NAME_COMPARED_MAX + 1][AD_NAME_COMPARED_MAX + 1];
  if (rows > AD_NAME_COMPARED_MAX || columns > AD_NAME_COMPARED_MAX) return AD_NAME_COMPARED_MAX;
  for (int i = 0; i <= rows; i++) distance[i][0] = i;
  for (int j = 0; j <= columns; j++) distance[0][j] = j;
  for (int i = 1; i <= rows; i++) {
    for (int j = 1; j <= columns; j++) {
      int changed = distance[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      distance[i][j] = least_of(distance[i - 1][j] + 1, distance[i][j - 1] + 1, changed);
      int swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped && distance[i - 2][j - 2] + 1 < distance[i][j]) distance[i][j] = distance[i - 2][j - 2] + 1;
    }
  }
  return distance[rows][columns];
}

int ad_name_distance_max(const char *unknown) { return strlen(unknown) <= 4 ? 1 : 2; }

const char *ad_nearest_name(const char *unknown, const char *const *names, size_t count) {
  if (!unknown || !names) return NULL;
  const char *nearest = NULL;
  int least = ad_name_distance_max(unknown) + 1;
  for (size_t i = 0; i < count; i++) {
    int distance = ad_name_distance(names[i], unknown);
    if (distance >= least) continue;
    least = distance;
    nearest = names[i];
  }
  return nearest;
}
