module scenarios/harness

go 1.21
