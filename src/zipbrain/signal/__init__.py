"""Signal: a recording -> windows in microvolts, with numpy alone: EDF reader, montage, filters, cutting, quality."""
