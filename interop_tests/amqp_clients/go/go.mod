module gantrymq/interop/amqp

go 1.21

require github.com/rabbitmq/amqp091-go v1.10.0

require scenarios/harness v0.0.0

replace scenarios/harness => ../scenarios
