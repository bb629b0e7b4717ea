// A user's C++ program on the core's installed headers alone.
#include <cstdio>
#include <addend/core.h>

int main() {
  ad_mesh *mesh = nullptr;
  if (ad_mesh_create("dp_replicate=2 tp=3", &mesh)) {
    std::fprintf(stderr, "%s\n", ad_last_error());
    return 1;
  }
  std::printf("%s: %lld ranks\n", ad_mesh_text(mesh), static_cast<long long>(ad_mesh_size(mesh)));
  ad_mesh_destroy(mesh);
  return 0;
}
