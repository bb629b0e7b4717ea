/* A user's program that knows addend only as it is installed. It prints a mesh; tests/install/test_install.sh builds
 * and runs it. */
#include <stdio.h>
#include <addend/mesh.h>

int main(void) {
  ad_mesh *mesh = NULL;
  if (ad_mesh_create("dp_replicate=2 tp=3", &mesh)) {
    fprintf(stderr, "%s\n", ad_last_error());
    return 1;
  }
  printf("%s: %lld ranks\n", ad_mesh_text(mesh), (long long)ad_mesh_size(mesh));
  ad_mesh_destroy(mesh);
  return 0;
}
