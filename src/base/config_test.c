/* Proves the parsing rules of settings: words, sizes, limits, trimming, and
 * that a refusal names the variable and the value (S024, S025). */
#include "base/config.h"
#include "harness/gb_test.h"

#include <stdlib.h>

static const gbi_setting chunk = {
    .name = "GPUBRIDGE_X_CHUNK",
    .default_value = "4M",
    .kind = GBI_SETTING_SIZE,
    .min = 8,
    .multiple = 8,
};
static const gbi_setting flag = {.name = "GPUBRIDGE_X_FLAG",
                                 .default_value = "off",
                                 .kind = GBI_SETTING_BOOL};
static const gbi_setting mode = {.name = "GPUBRIDGE_X_MODE",
                                 .default_value = "",
                                 .kind = GBI_SETTING_CHOICE,
                                 .choices = "half|node"};

GB_TEST(config, sizes) {
  gbi_value v;
  GB_CHECK_OK(gbi_setting_parse(&chunk, "4194304", &v, NULL));
  GB_CHECK_INT(v.number, 4 << 20);
  GB_CHECK_OK(gbi_setting_parse(&chunk, "4mB", &v, NULL));
  GB_CHECK_INT(v.number, 4 << 20);
  GB_CHECK(!strcmp(v.text, "4194304"));
  GB_CHECK_OK(gbi_setting_parse(&chunk, "0.5K", &v, NULL));
  GB_CHECK_INT(v.number, 512);
  const char *bad[] = {"", "4X", "-8", "12", "1e9", "nan", "4M4", "..", "0"};
  for (size_t i = 0; i < GBI_COUNT(bad); i++) {
    gb_error error;
    GB_CHECK_INT(gbi_setting_parse(&chunk, bad[i], &v, &error), GB_ERR_SETTING);
    GB_CHECK_TEXT(error.text, "GPUBRIDGE_X_CHUNK");
    GB_CHECK_TEXT(error.text, bad[i]);
  }
}

GB_TEST(config, environment_is_trimmed_and_empty_is_unset) {
  gbi_value v;
  setenv("GPUBRIDGE_X_FLAG", "  YES ", 1);
  GB_CHECK_OK(gbi_setting_read(&flag, &v, NULL));
  GB_CHECK_INT(v.number, 1);
  GB_CHECK(v.is_set);
  setenv("GPUBRIDGE_X_FLAG", "  ", 1);
  GB_CHECK_OK(gbi_setting_read(&flag, &v, NULL));
  GB_CHECK_INT(v.number, 0);
  GB_CHECK(!v.is_set);
  setenv("GPUBRIDGE_X_MODE", "HALF", 1);
  GB_CHECK_OK(gbi_setting_read(&mode, &v, NULL));
  GB_CHECK(!strcmp(v.text, "half"));
  gb_error error;
  setenv("GPUBRIDGE_X_MODE", "third", 1);
  GB_CHECK_INT(gbi_setting_read(&mode, &v, &error), GB_ERR_SETTING);
  GB_CHECK_TEXT(error.text, "half|node");
}
