/* SPDX-License-Identifier: Apache-2.0
 * A CNI plugin that does nothing but say so: what a container's start costs without networking.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
    char input[4096];
    while (fread(input, 1, sizeof input, stdin) > 0)
        ;
    const char *command = getenv("CNI_COMMAND");
    if (command && strcmp(command, "ADD") == 0)
        puts("{\"cniVersion\": \"1.0.0\", \"interfaces\": [{\"name\": \"eth0\", \"sandbox\": \"/\"}]}");
    return 0;
}
