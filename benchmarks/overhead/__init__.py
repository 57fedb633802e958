"""What a proxy costs in CPU time: per plain request, per streamed chunk, per 400 KB request, beside peers."""
