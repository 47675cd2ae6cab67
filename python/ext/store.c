/* The caller's store: a Python object behind gb_store. Called only inside
 * Job(...), on the thread that holds no GIL there. */
#include "core.h"

#include <stdio.h>
#include <string.h>

/* The pending exception as text; it is cleared. */
static void take_error(char *text, size_t bytes) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject *words = value ? PyObject_Str(value) : NULL;
  PyObject *raw = words ? PyUnicode_AsUTF8String(words) : NULL;
  snprintf(text, bytes, "%s", raw ? PyBytes_AsString(raw) : "unknown error");
  PyErr_Clear();
  Py_XDECREF(raw);
  Py_XDECREF(words);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
}

static int store_set(void *arg, const char *key, const void *value,
                     size_t bytes, char *text, size_t text_bytes) {
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *result = PyObject_CallMethod(arg, "set", "sy#", key, value,
                                         (Py_ssize_t)bytes);
  int code = result ? 0 : -1;
  if (!result) take_error(text, text_bytes);
  Py_XDECREF(result);
  PyGILState_Release(gil);
  return code;
}

static int copy_value(PyObject *result, void *value, size_t bytes,
                      size_t *bytes_p, char *text, size_t text_bytes) {
  char *data;
  Py_ssize_t n;
  if (result == Py_None) return 1;
  if (PyBytes_AsStringAndSize(result, &data, &n) < 0) {
    take_error(text, text_bytes);
    return -1;
  }
  *bytes_p = (size_t)n;
  memcpy(value, data, (size_t)n < bytes ? (size_t)n : bytes);
  return 0;
}

static int store_get(void *arg, const char *key, void *value, size_t bytes,
                     size_t *bytes_p, uint64_t timeout_ms, char *text,
                     size_t text_bytes) {
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *result = PyObject_CallMethod(arg, "get", "sK", key,
                                         (unsigned long long)timeout_ms);
  int code = -1;
  if (result)
    code = copy_value(result, value, bytes, bytes_p, text, text_bytes);
  else
    take_error(text, text_bytes);
  Py_XDECREF(result);
  PyGILState_Release(gil);
  return code;
}

void core_store_fill(gb_store *store, PyObject *object) {
  *store = (gb_store){.size = sizeof *store,
                      .arg = object,
                      .set = store_set,
                      .get = store_get};
}
