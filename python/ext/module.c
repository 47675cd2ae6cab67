#include "core.h"

PyObject *core_raise(core_state *state, const gb_error *error) {
  if (PyErr_Occurred()) return NULL;
  PyObject *type = state->error;
  switch (error->status) {
    case GB_ERR_ARGUMENT:
    case GB_ERR_SETTING:
    case GB_ERR_TYPE: type = PyExc_ValueError; break;
    case GB_ERR_UNSUPPORTED: type = PyExc_NotImplementedError; break;
    case GB_ERR_MEMORY: type = PyExc_MemoryError; break;
    case GB_ERR_WAIT_TIMEOUT: type = PyExc_TimeoutError; break;
    default: break;
  }
  PyObject *value = PyObject_CallFunction(type, "s", error->text);
  if (!value) return NULL;
  PyObject *status = PyUnicode_FromString(gb_status_name(error->status));
  PyObject *rank = PyLong_FromLong(error->rank);
  int ended = gb_status_scope(error->status) == GB_SCOPE_JOB;
  if (state->cause && ended) {
    Py_INCREF(state->cause);
    PyException_SetCause(value, state->cause);
  }
  if (status && rank && PyObject_SetAttrString(value, "status", status) == 0 &&
      PyObject_SetAttrString(value, "rank", rank) == 0)
    PyErr_SetObject(type, value);
  Py_XDECREF(status);
  Py_XDECREF(rank);
  Py_DECREF(value);
  return NULL;
}

static PyObject *core_version(PyObject *module, PyObject *unused) {
  return PyUnicode_FromString(gb_version());
}

static void add_setting(void *arg, const gb_setting_info *info) {
  PyObject *list = arg;
  if (PyErr_Occurred()) return;
  PyObject *row = Py_BuildValue(
      "{s:s,s:s,s:s,s:s,s:N,s:s,s:z}", "name", info->name, "default",
      info->default_value, "value", info->value, "source", info->source,
      "must_agree", PyBool_FromLong(info->must_agree), "help", info->help,
      "problem", info->problem);
  if (row && PyList_Append(list, row) == 0) Py_DECREF(row);
}

static PyObject *core_settings(PyObject *module, PyObject *unused) {
  PyObject *list = PyList_New(0);
  if (list) gb_settings_list(add_setting, list);
  if (PyErr_Occurred()) Py_CLEAR(list);
  return list;
}

/* On every call's path in a job on a GPU. */
static PyObject *core_use_stream(PyObject *module, PyObject *stream) {
  unsigned long long handle = PyLong_AsUnsignedLongLongMask(stream);
  if (handle == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
  gb_use_stream((void *)(uintptr_t)handle);
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"version", core_version, METH_NOARGS, "Version of the C library."},
    {"settings", core_settings, METH_NOARGS,
     "Every setting: a list of dicts with name, default, value, source,\n"
     "must_agree, help and problem."},
    {"use_stream", core_use_stream, METH_O,
     "use_stream(handle): what this thread's next calls on a GPU, and waits\n"
     "for them, are ordered on; 0: the legacy default stream."},
    {NULL, NULL, 0, NULL}};

static int module_exec(PyObject *module) {
  core_state *state = PyModule_GetState(module);
  state->error = PyErr_NewExceptionWithDoc(
      "gpubridge._core.Error",
      "A job or one of its calls failed. `status` names the reason, `rank` is\n"
      "the global rank that failed, or -1.",
      PyExc_RuntimeError, NULL);
  if (!state->error || PyModule_AddObjectRef(module, "Error", state->error) < 0)
    return -1;
  if (core_add_job(module, state) < 0) return -1;
  if (core_add_group(module, state) < 0) return -1;
  return core_add_work(module, state);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
  core_state *state = PyModule_GetState(module);
  Py_VISIT(state->error);
  Py_VISIT(state->cause);
  Py_VISIT(state->job_type);
  Py_VISIT(state->group_type);
  Py_VISIT(state->work_type);
  return 0;
}

static int module_clear(PyObject *module) {
  core_state *state = PyModule_GetState(module);
  Py_CLEAR(state->error);
  Py_CLEAR(state->cause);
  Py_CLEAR(state->job_type);
  Py_CLEAR(state->group_type);
  Py_CLEAR(state->work_type);
  return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gpubridge._core",
    .m_doc = "The C library of gpubridge, for the package's own use.",
    .m_size = sizeof(core_state),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&core_module); }
