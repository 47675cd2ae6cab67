/* A bridge and a policy written in Python: an object (gpubridge/parts.py)
 * behind the callbacks of gpubridge/parts.h. They run on threads that came from
 * Python, without its GIL: the caller's, or the one inside Group.serve.
 *
 * An exception becomes the job's one sentence; the object itself is kept, to be
 * the cause of what this rank raises. One that is no Exception (Ctrl-C) stays
 * set on its thread, and is what the call raises there. */
#include "core.h"

#include <stdbool.h>
#include <stdio.h>

/* PyBUF_WRITE, which headers of the limited API leave out before 3.11. */
enum { VIEW_WRITABLE = 0x200 };

/* Ends a failed callback: the pending exception as a code and a text. */
static int take_failure(core_state *state, char *text, size_t bytes) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return GB_PART_INTERRUPTED;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value && trace) PyException_SetTraceback(value, trace);
  PyObject *words = value ? PyObject_Str(value) : NULL;
  PyObject *raw = words ? PyUnicode_AsUTF8String(words) : NULL;
  snprintf(text, bytes, "%s", raw ? PyBytes_AsString(raw) : "unknown error");
  PyErr_Clear();
  /* parts.py wraps what the user's code raised, to say where. */
  PyObject *cause = value ? PyException_GetCause(value) : NULL;
  if (!cause) Py_XINCREF(value);
  PyObject *old = state->cause;
  state->cause = cause ? cause : value;
  Py_XDECREF(old);
  Py_XDECREF(raw);
  Py_XDECREF(words);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return GB_PART_FAILED;
}

/* Drops a callback's result. */
static int take_result(core_state *state, PyObject *result, char *text,
                       size_t bytes) {
  if (!result) return take_failure(state, text, bytes);
  Py_DECREF(result);
  return GB_PART_OK;
}

/* Memory that the callee may write. */
static PyObject *view_of(const void *data, size_t count, gb_dtype dtype) {
  static char nothing[1];
  size_t bytes = count * gb_dtype_bytes(dtype);
  return PyMemoryView_FromMemory(bytes ? (char *)(uintptr_t)data : nothing,
                                 (Py_ssize_t)bytes, VIEW_WRITABLE);
}

/* ---- bridge ---- */

/* What the library holds of an open link. */
typedef struct part_link {
  core_state *state;
  PyObject *object;
} part_link;

static PyObject *facts_of(const gb_job *job, int rank) {
  gb_peer_info info = {.size = sizeof info};
  PyObject *dict = PyDict_New();
  if (!dict || gb_job_get_peer(job, rank, &info) != GB_OK) return dict;
  for (size_t i = 0; i < info.facts_count; i++) {
    PyObject *value = PyUnicode_FromString(info.facts[i].value);
    if (value) PyDict_SetItemString(dict, info.facts[i].name, value);
    Py_XDECREF(value);
  }
  if (PyErr_Occurred()) Py_CLEAR(dict);
  return dict;
}

static PyObject *ranks_of(const gb_bridge_site *site) {
  PyObject *tuple = PyTuple_New(site->count);
  for (int i = 0; tuple && i < site->count; i++)
    PyTuple_SetItem(tuple, i, PyLong_FromLong(site->ranks[i]));
  return tuple;
}

static int open_link(void *arg, const gb_bridge_site *site, void **link_p,
                     char *text, size_t text_bytes) {
  core_parts *parts = arg;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *facts = facts_of(site->job, 0);
  PyObject *ranks = ranks_of(site);
  PyObject *result = NULL;
  int code;
  if (facts && ranks)
    result = PyObject_CallMethod(parts->object, "open_link", "OIOiK", facts,
                                 site->group, ranks, site->is_member,
                                 (unsigned long long)site->timeout_ms);
  bool is_link = result && result != Py_None;
  part_link *made = is_link ? PyMem_Malloc(sizeof *made) : NULL;
  if (made) {
    *made = (part_link){parts->state, result};
    *link_p = made;
    code = GB_PART_OK; /* the reference is the link's */
  } else {
    if (is_link) {
      Py_CLEAR(result);
      PyErr_NoMemory();
    }
    code = take_result(parts->state, result, text, text_bytes);
  }
  Py_XDECREF(facts);
  Py_XDECREF(ranks);
  PyGILState_Release(gil);
  return code;
}

static int call_link(part_link *l, const char *method, const gb_buffer *buffer,
                     int last, char *text, size_t text_bytes) {
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *view = view_of(buffer->data, buffer->count, buffer->dtype);
  PyObject *result = NULL;
  if (view)
    result = PyObject_CallMethod(l->object, method, "Oii", view,
                                 (int)buffer->dtype, last);
  int code = take_result(l->state, result, text, text_bytes);
  Py_XDECREF(view);
  PyGILState_Release(gil);
  return code;
}

static int link_all_reduce(void *arg, const gb_buffer *buffer, gb_redop op,
                           char *text, size_t text_bytes) {
  return call_link(arg, "all_reduce", buffer, (int)op, text, text_bytes);
}

static int link_broadcast(void *arg, const gb_buffer *buffer, int src,
                          char *text, size_t text_bytes) {
  return call_link(arg, "broadcast", buffer, src, text, text_bytes);
}

/* Perhaps with an exception set: an interrupted opening closes what it had. */
static void close_link(void *arg) {
  part_link *l = arg;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject *result = PyObject_CallMethod(l->object, "close", NULL);
  if (!result) PyErr_WriteUnraisable(l->object);
  Py_XDECREF(result);
  Py_DECREF(l->object);
  PyMem_Free(l);
  PyErr_Restore(type, value, trace);
  PyGILState_Release(gil);
}

/* ---- policy ---- */

static int policy_fits(void *arg, const char *const *labels, int count,
                       char *text, size_t text_bytes) {
  core_parts *parts = arg;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *tuple = PyTuple_New(count);
  for (int i = 0; tuple && i < count; i++)
    PyTuple_SetItem(tuple, i, PyUnicode_FromString(labels[i]));
  PyObject *result =
      tuple ? PyObject_CallMethod(parts->object, "fits", "(O)", tuple) : NULL;
  int fits = result ? PyObject_IsTrue(result) : -1;
  int code = fits == 1   ? GB_PART_OK
             : fits == 0 ? GB_PART_NO
                         : take_failure(parts->state, text, text_bytes);
  Py_XDECREF(result);
  Py_XDECREF(tuple);
  PyGILState_Release(gil);
  return code;
}

static int policy_accepts(void *arg, const gb_policy_call *call, char *text,
                          size_t text_bytes) {
  core_parts *parts = arg;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *result = PyObject_CallMethod(
      parts->object, "accepts", "siiKK", call->op, (int)call->dtype,
      call->redop, (unsigned long long)call->in_count,
      (unsigned long long)call->out_count);
  int code;
  if (result && result != Py_None) {
    PyObject *raw = PyUnicode_AsUTF8String(result);
    code = raw ? GB_PART_NO : take_failure(parts->state, text, text_bytes);
    if (raw) snprintf(text, text_bytes, "%s", PyBytes_AsString(raw));
    Py_XDECREF(raw);
    Py_DECREF(result);
  } else {
    code = take_result(parts->state, result, text, text_bytes);
  }
  PyGILState_Release(gil);
  return code;
}

static int policy_run(void *arg, const gb_policy_call *call, char *text,
                      size_t text_bytes) {
  core_parts *parts = arg;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *in = view_of(call->in, call->in_count, call->dtype);
  PyObject *out = view_of(call->out, call->out_count, call->dtype);
  PyObject *result = NULL;
  if (in && out)
    result =
        PyObject_CallMethod(parts->object, "run", "siiiOO", call->op,
                            (int)call->dtype, call->redop, call->src, in, out);
  int code = take_result(parts->state, result, text, text_bytes);
  Py_XDECREF(in);
  Py_XDECREF(out);
  PyGILState_Release(gil);
  return code;
}

/* ---- taking them ---- */

/* A text attribute, borrowed from `held`; *text_p stays NULL for None. */
static int read_text(PyObject *object, const char *name, PyObject *held,
                     const char **text_p) {
  PyObject *value = PyObject_GetAttrString(object, name);
  if (!value) return -1;
  int failed = 0;
  if (value != Py_None) {
    PyObject *raw = PyUnicode_AsUTF8String(value);
    failed = !raw || PyList_Append(held, raw) < 0;
    if (!failed) *text_p = PyBytes_AsString(raw);
    Py_XDECREF(raw);
  }
  Py_DECREF(value);
  return failed ? -1 : 0;
}

static int read_bits(PyObject *object, const char *name, uint32_t *bits_p) {
  PyObject *value = PyObject_GetAttrString(object, name);
  if (!value) return -1;
  *bits_p = (uint32_t)PyLong_AsUnsignedLongMask(value);
  Py_DECREF(value);
  return PyErr_Occurred() ? -1 : 0;
}

int core_parts_fill(core_parts *parts, PyObject *held, gb_job_params *params) {
  PyObject *object = parts->object;
  parts->bridge = (gb_bridge_ops){.size = sizeof parts->bridge,
                                  .arg = parts,
                                  .open = open_link,
                                  .all_reduce = link_all_reduce,
                                  .broadcast = link_broadcast,
                                  .close = close_link};
  parts->policy = (gb_policy_ops){.size = sizeof parts->policy,
                                  .arg = parts,
                                  .fits = policy_fits,
                                  .accepts = policy_accepts,
                                  .run = policy_run};
  if (read_text(object, "bridge_name", held, &parts->bridge.name) < 0 ||
      read_bits(object, "bridge_redops", &parts->bridge.redops) < 0 ||
      read_bits(object, "bridge_dtypes", &parts->bridge.dtypes) < 0 ||
      read_text(object, "policy_name", held, &parts->policy.name) < 0 ||
      read_text(object, "policy_settings", held, &parts->policy.settings) < 0)
    return -1;
  if (parts->bridge.name) params->bridge_ops = &parts->bridge;
  if (parts->policy.name) params->policy_ops = &parts->policy;
  return 0;
}
