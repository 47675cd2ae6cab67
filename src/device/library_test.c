/* Where a vendor's library is looked for, in which order, and what is said when
 * it is not there: one small library at several places (tests/device), each of
 * which says where it lies. A copy in the process always wins over a file. */
#include "device/library.h"

#include "harness/gb_test.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

static const gbi_library_wanted wanted = {
    .what = "the finding library",
    .setting = "GPUBRIDGE_TEST_LIB",
    .symbol = "gbfind_where",
    .names = (const char *const[]){"libgbfind.so.2", "libgbfind.so", NULL},
    .packages = (const char *const[]){"nvidia/gbfind/lib", NULL},
};

static void *load(const char *path, int how) {
  void *handle = dlopen(path, RTLD_NOW | how);
  if (!handle) gb_test_fail(__FILE__, __LINE__, "%s", dlerror());
  return handle;
}

/* What the opened library says. */
static const char *where(const char **path_p) {
  void *handle = NULL;
  gb_error error = {0};
  if (gbi_library_open(&wanted, &handle, path_p, &error) != GB_OK)
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  const char *(*say)(void) = NULL;
  gbi_library_symbol row = {"gbfind_where", (void **)&say, true};
  GB_CHECK_OK(gbi_library_bind(handle, *path_p, &row, 1, NULL, &error));
  return say();
}

GB_TEST(library, by_the_loader) {
  const char *path;
  GB_CHECK_TEXT(where(&path), "loader");
  GB_CHECK_TEXT(path, FINDING "/loader/libgbfind.so.2");
}

GB_TEST(library, the_setting_wins) {
  const char *path;
  load(FINDING "/loader/libgbfind.so.2", RTLD_LOCAL);
  setenv("GPUBRIDGE_TEST_LIB", " " FINDING "/other/libgbfind.so.2 ", 1);
  GB_CHECK_TEXT(where(&path), "other");
  GB_CHECK_TEXT(path, "/other/");
}

GB_TEST(library, a_wrong_setting_is_not_replaced) {
  void *handle = NULL;
  gb_error error = {0};
  setenv("GPUBRIDGE_TEST_LIB", "/nowhere/libgbfind.so.2", 1);
  GB_CHECK_INT(gbi_library_open(&wanted, &handle, NULL, &error),
               GB_ERR_UNSUPPORTED);
  GB_CHECK(!handle);
  GB_CHECK_TEXT(error.text, "/nowhere/libgbfind.so.2");
  GB_CHECK_TEXT(error.text, "GPUBRIDGE_TEST_LIB");
  setenv("GPUBRIDGE_TEST_LIB", FINDING "/broken/libgbfind.so.2", 1);
  GB_CHECK_INT(gbi_library_open(&wanted, &handle, NULL, &error),
               GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, "broken");
}

GB_TEST(library, a_loaded_copy_wins) {
  const char *path;
  load(FINDING "/other/libgbfind.so.2", RTLD_LOCAL);
  GB_CHECK_TEXT(where(&path), "other");
  /* And no second copy came in. */
  GB_CHECK(!dlopen(FINDING "/loader/libgbfind.so.2", RTLD_NOW | RTLD_NOLOAD));
}

/* As torch has it: linked to something that was loaded in a local scope. */
GB_TEST(library, a_copy_that_another_library_brought) {
  const char *path;
  load(FINDING "/other/libuser.so.2", RTLD_LOCAL);
  GB_CHECK_TEXT(where(&path), "other");
  GB_CHECK_TEXT(path, "libgbfind.so.2");
}

static void check_whole(int how) {
  const char *path;
  load(FINDING "/other/libwhole.so.2", how);
  GB_CHECK_TEXT(where(&path), "whole");
  GB_CHECK_TEXT(path, "libwhole.so.2");
}
GB_TEST(library, linked_into_another_library_local) {
  check_whole(RTLD_LOCAL);
}
GB_TEST(library, linked_into_another_library_global) {
  check_whole(RTLD_GLOBAL);
}

/* As NCCL's functions in RCCL. */
GB_TEST(library, another_library_with_the_same_function) {
  gbi_library_wanted strict = wanted;
  strict.names = (const char *const[]){"libgbstrict.so", NULL};
  void *handle = NULL;
  load(FINDING "/other/libuser.so.2", RTLD_LOCAL);
  GB_CHECK(gbi_library_loaded(&strict, &handle, NULL));
  strict.without = "gbfind_where";
  GB_CHECK(!gbi_library_loaded(&strict, &handle, NULL));
}

GB_TEST(library, beside_torch) {
  const char *path;
  load(FINDING "/site/torch/lib/libc10.so.2", RTLD_LOCAL);
  GB_CHECK_TEXT(where(&path), "package");
  GB_CHECK_TEXT(path, "/site/nvidia/gbfind/lib/");
}

GB_TEST(library, looks_without_loading) {
  void *handle = NULL;
  const char *path = NULL;
  GB_CHECK(!gbi_library_loaded(&wanted, &handle, &path));
  setenv("GPUBRIDGE_TEST_LIB", FINDING "/loader/libgbfind.so.2", 1);
  GB_CHECK(!gbi_library_loaded(&wanted, &handle, &path));
  GB_CHECK(!handle && !path);
  load(FINDING "/other/libgbfind.so.2", RTLD_LOCAL);
  GB_CHECK(gbi_library_loaded(&wanted, &handle, &path));
  GB_CHECK_TEXT(path, "/other/");
}

GB_TEST(library, says_what_was_tried) {
  const gbi_library_wanted lost = {
      .what = "the lost library",
      .setting = "GPUBRIDGE_TEST_LIB",
      .symbol = "gblost_where",
      .names = (const char *const[]){"libgblost.so.3", "libgblost.so", NULL},
      .packages = (const char *const[]){"nvidia/gblost/lib", NULL},
  };
  void *handle = NULL;
  gb_error error = {0};
  GB_CHECK_INT(gbi_library_open(&lost, &handle, NULL, &error),
               GB_ERR_UNSUPPORTED);
  GB_CHECK(!handle);
  static const char *const parts[] = {"the lost library was not found",
                                      "libgblost.so.3",
                                      "libgblost.so",
                                      "torch neither",
                                      "LD_LIBRARY_PATH",
                                      "GPUBRIDGE_TEST_LIB"};
  for (size_t i = 0; i < GBI_COUNT(parts); i++)
    GB_CHECK_TEXT(error.text, parts[i]);
  load(FINDING "/site/torch/lib/libc10.so.2", RTLD_LOCAL);
  GB_CHECK_INT(gbi_library_open(&lost, &handle, NULL, &error),
               GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, "/site/nvidia/gblost/lib");
}

/* A file that is there, but does not load, is not "not found" alone. */
GB_TEST(library, says_why_a_file_does_not_load) {
  const gbi_library_wanted broken = {
      .what = "the broken library",
      .names = (const char *const[]){"libgblost.so",
                                     FINDING "/broken/libgbfind.so.2", NULL},
  };
  void *handle = NULL;
  gb_error error = {0};
  GB_CHECK_INT(gbi_library_open(&broken, &handle, NULL, &error),
               GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, "/broken/libgbfind.so.2: ");
}

GB_TEST(library, names_a_missing_symbol) {
  void *handle, *one = NULL, *two = NULL, *three = NULL;
  const char *path;
  gb_error error = {0};
  GB_CHECK_OK(gbi_library_open(&wanted, &handle, &path, &error));
  const gbi_library_symbol rows[] = {{"gbfind_later", &one, false},
                                     {"gbfind_where", &two, true},
                                     {"gbfind_future", &three, true}};
  GB_CHECK_OK(gbi_library_bind(handle, path, rows, 2, NULL, &error));
  GB_CHECK(!one && two);
  GB_CHECK_INT(gbi_library_bind(handle, path, rows, 3, "gbfind 9", &error),
               GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, "gbfind_future");
  GB_CHECK_TEXT(error.text, path);
  GB_CHECK_TEXT(error.text, "gbfind 9");
}

static void *open_many(void *arg) {
  for (int i = 0; i < 50; i++) {
    void *handle = NULL;
    const char *path;
    if (gbi_library_open(&wanted, &handle, &path, NULL) != GB_OK) return NULL;
    if (i == 0) *(void **)arg = handle;
    if (handle != *(void **)arg) return NULL;
  }
  return arg;
}

GB_TEST(library, one_copy_from_several_threads) {
  pthread_t threads[4];
  void *handles[4] = {0};
  for (int i = 0; i < 4; i++)
    GB_CHECK_OK(pthread_create(&threads[i], NULL, open_many, &handles[i]));
  for (int i = 0; i < 4; i++) {
    void *good = NULL;
    pthread_join(threads[i], &good);
    GB_CHECK(good && handles[i] == handles[0]);
  }
}

/* The real ones are well formed, and each has a setting that is listed. */
GB_TEST(library, the_vendors_are_listed) {
  const gbi_library_wanted *const all[] = {
      &gbi_library_cuda, &gbi_library_nccl,  &gbi_library_rccl,
      &gbi_library_hip,  &gbi_library_nvrtc, &gbi_library_hiprtc};
  GB_CHECK_INT(gbi_library_settings_count, GBI_COUNT(all));
  for (size_t i = 0; i < GBI_COUNT(all); i++) {
    int found = 0;
    for (int k = 0; k < gbi_library_settings_count; k++)
      found += !strcmp(gbi_library_settings[k].name, all[i]->setting);
    GB_CHECK_INT(found, 1);
    GB_CHECK(all[i]->names[0]);
  }
}
