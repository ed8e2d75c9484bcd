"""The papers' algorithms as published. They need raw access, so they carry no guarantee."""
