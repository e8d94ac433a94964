#include "octet/app/cli.h"

int main(int argc, char** argv) { return octet::app::run(argc, argv); }
