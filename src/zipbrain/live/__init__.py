"""Live: an exported file on a stream -> decisions, alarms and a journal, with numpy and ONNX Runtime alone."""
